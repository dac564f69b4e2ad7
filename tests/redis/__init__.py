"""The public API on real servers, and where nothing but the API matters on the embedded one too."""
