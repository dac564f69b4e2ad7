"""The wheel against what else can hold timers: operation x implementation x size."""
