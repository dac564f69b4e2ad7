package main

import (
	"context"
	"sync"
	"sync/atomic"
)

// A rival acquires locks on one server, as its package documents it.
type rival interface {
	// acquire waits until the lock is free and returns it, held. Cancelling ctx ends the wait.
	acquire(ctx context.Context, name string) (lock, error)
	// renewed returns the number of renewals so far, or nil if the package does not tell.
	renewed() *int64
}

// A lock is held by the caller of acquire until it is released.
type lock interface {
	// keep renews the lock every third of its timeout until it is released, and calls lost once if it is lost.
	keep(lost func(reason string))
	// release ends keep, and gives the lock back.
	release() error
}

// each calls work for all numbers below n, so many at a time, and returns the first error.
func each(n, atATime int, work func(int) error) error {
	var (
		next    atomic.Int64
		group   sync.WaitGroup
		once    sync.Once
		failure error
	)
	for range min(n, atATime) {
		group.Go(func() {
			for {
				number := int(next.Add(1)) - 1
				if number >= n {
					return
				}
				if err := work(number); err != nil {
					once.Do(func() { failure = err })
					next.Store(int64(n)) // the others begin nothing more
					return
				}
			}
		})
	}
	group.Wait()
	return failure
}
