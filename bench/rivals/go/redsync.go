package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncLocker is redsync on go-redis, both with their default settings.
type redsyncLocker struct {
	renewer
	redsync *redsync.Redsync
}

func newRedsync(url string, timeout time.Duration) (rival, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	pool := goredis.NewPool(client)
	return &redsyncLocker{renewer{timeout: timeout}, redsync.New(pool)}, client.Ping(context.Background()).Err()
}

func (r *redsyncLocker) acquire(ctx context.Context, name string) (lock, error) {
	mutex := r.redsync.NewMutex(name, redsync.WithExpiry(r.timeout))
	for {
		// It tries 32 times by itself, and may be called again then, says its documentation.
		err := mutex.LockContext(ctx)
		if err == nil {
			return &redsyncLock{locker: r, mutex: mutex, stop: func() {}}, nil
		}
		if ctx.Err() != nil || !isTaken(err) {
			return nil, err
		}
	}
}

type redsyncLock struct {
	locker *redsyncLocker
	mutex  *redsync.Mutex
	stop   func()
}

func (l *redsyncLock) keep(lost func(reason string)) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.locker.keep(ctx, l.mutex.Until(), l.extend, isTaken, lost)
}

func (l *redsyncLock) extend(ctx context.Context) (time.Time, error) {
	ok, err := l.mutex.ExtendContext(ctx)
	if err == nil && !ok {
		err = redsync.ErrExtendFailed
	}
	return l.mutex.Until(), err
}

func (l *redsyncLock) release() error {
	l.stop()
	_, err := l.mutex.UnlockContext(context.Background())
	return err
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}
