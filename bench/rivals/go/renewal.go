package main

import (
	"context"
	"sync/atomic"
	"time"
)

// A renewer keeps locks whose package has no renewal of its own, by a goroutine for each, as a careful user writes it.
type renewer struct {
	timeout time.Duration
	count   atomic.Int64
}

func (r *renewer) renewed() *int64 {
	count := r.count.Load()
	return &count
}

// An extension returns until when the lock is valid, and ends early when its context does.
type extension func(context.Context) (until time.Time, err error)

// keep calls extend every third of the timeout until ctx is cancelled or the lock is lost: gone recognizes the error of
// a lock that another one holds or that has expired, and without an answer the lock is lost at until, or at the time
// that the last successful extend has returned. Any other error proves nothing, and extend is called again soon. The
// context of a call ends when the lock does, which go-redis looks at between two tries and, by default, not while it
// waits for an answer.
func (r *renewer) keep(
	ctx context.Context, until time.Time, extend extension, gone func(error) bool, lost func(reason string),
) {
	interval := r.timeout / 3
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		limited, cancel := context.WithDeadline(ctx, until)
		valid, err := extend(limited)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			r.count.Add(1)
			until = valid
			timer.Reset(time.Until(began.Add(interval)))
		case gone(err) || !time.Now().Before(until):
			lost(err.Error())
			return
		default:
			timer.Reset(min(interval/10, time.Until(until)))
		}
	}
}
