package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// The pause of the package's own example of an Obtain that waits; by default it does not wait.
const bsmRetryEvery = 100 * time.Millisecond

// bsmLocker is bsm/redislock on go-redis, with its default settings.
type bsmLocker struct {
	renewer
	client *redislock.Client
}

func newBsm(url string, timeout time.Duration) (rival, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	return &bsmLocker{renewer{timeout: timeout}, redislock.New(client)}, client.Ping(context.Background()).Err()
}

func (b *bsmLocker) acquire(ctx context.Context, name string) (lock, error) {
	for {
		held, err := b.client.Obtain(ctx, name, b.timeout, &redislock.Options{
			RetryStrategy: redislock.LinearBackoff(bsmRetryEvery),
		})
		if err == nil {
			return &bsmLock{locker: b, held: held, stop: func() {}}, nil
		}
		// It gives up after the lock's time-to-live unless ctx has a deadline.
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
	}
}

type bsmLock struct {
	locker *bsmLocker
	held   *redislock.Lock
	stop   func()
}

func (l *bsmLock) keep(lost func(reason string)) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.locker.keep(ctx, time.Now().Add(l.locker.timeout), l.extend, isNotObtained, lost)
}

// extend returns when the time-to-live ends, counted from before the call: the package does not say.
func (l *bsmLock) extend(ctx context.Context) (time.Time, error) {
	until := time.Now().Add(l.locker.timeout)
	return until, l.held.Refresh(ctx, l.locker.timeout, nil)
}

func (l *bsmLock) release() error {
	l.stop()
	return l.held.Release(context.Background())
}

func isNotObtained(err error) bool {
	return errors.Is(err, redislock.ErrNotObtained)
}
