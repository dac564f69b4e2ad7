package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidisLocker is rueidislock: it renews by itself, and hears of deleted keys and of releases by client-side caching.
type rueidisLocker struct {
	locker rueidislock.Locker
}

func newRueidislock(url string, timeout time.Duration) (rival, error) {
	client, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   client,
		KeyValidity:    timeout,
		ExtendInterval: timeout / 3, // half of the validity by default
		// What its documentation recommends for one server, and from Redis 7.0.5 on.
		KeyMajority:    1,
		NoLoopTracking: true,
		// How long it waits for the answer to an acquire before it deletes the key, by default 20 ms, which a loaded server
		// exceeds. With NOLOOP the deletion wakes nothing, and the caller would wait for ever. One server has no next key.
		TryNextAfter: timeout,
	})
	if err != nil {
		return nil, err
	}
	return &rueidisLocker{locker}, nil
}

func (r *rueidisLocker) acquire(ctx context.Context, name string) (lock, error) {
	held, cancel, err := r.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return &rueidisLock{held: held, cancel: cancel}, nil
}

func (r *rueidisLocker) renewed() *int64 {
	return nil
}

type rueidisLock struct {
	held   context.Context // cancelled when the lock is lost or released
	cancel context.CancelFunc
	stop   func() bool
}

func (l *rueidisLock) keep(lost func(reason string)) {
	l.stop = context.AfterFunc(l.held, func() { lost(l.held.Err().Error()) })
}

func (l *rueidisLock) release() error {
	if l.stop != nil {
		l.stop()
	}
	l.cancel() // returns when the key is deleted
	return nil
}
