package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// At one lock after the other, each acquire would wait for a round trip; so many at a time keep the connection busy.
const acquiredAtATime = 128

// The names of a caller in mode pairs: a new lock each time, but no endless number of keys.
const namesPerCaller = 64

const lookEvery = 2 * time.Millisecond

// hold acquires all locks and keeps them.
func (w *worker) hold() (answer, error) {
	o := w.options
	held := make([]lock, o.Locks)
	err := each(o.Locks, acquiredAtATime, func(number int) error {
		index := o.First + number
		acquired, err := w.rival.acquire(context.Background(), o.Prefix+strconv.Itoa(index))
		if err != nil {
			return err
		}
		acquired.keep(func(reason string) { w.losses.add(index, reason) })
		held[number] = acquired
		return nil
	})
	return func(argument string) (any, error) {
		switch argument {
		case "read":
			return map[string]any{"renewed": w.rival.renewed(), "lost": w.losses.count(), "heap": liveHeap()}, nil
		case "release":
			return struct{}{}, each(o.Locks, acquiredAtATime, func(number int) error {
				if w.losses.has(o.First + number) {
					return nil // there is nothing left to release
				}
				return held[number].release()
			})
		}
		return nil, fmt.Errorf("no %s", argument)
	}, err
}

func liveHeap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// pairs acquires and releases free locks. Threads and tasks are goroutines, which is all that the language has.
func (w *worker) pairs() (answer, error) {
	for range w.options.Spin {
		go spin()
	}
	_, err := w.makePairs(seconds(w.options.WarmS))
	return func(argument string) (any, error) {
		length, err := strconv.ParseFloat(argument, 64)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		made, err := w.makePairs(seconds(length))
		return map[string]any{"pairs": made, "seconds": time.Since(began).Seconds()}, err
	}, err
}

func (w *worker) makePairs(length time.Duration) (int64, error) {
	var made atomic.Int64
	until := time.Now().Add(length)
	err := each(w.options.Callers, w.options.Callers, func(caller int) error {
		for number := 0; time.Now().Before(until); number++ {
			acquired, err := w.rival.acquire(context.Background(), fmt.Sprintf("p:%d:%d", caller, number%namesPerCaller))
			if err != nil {
				return err
			}
			if err := acquired.release(); err != nil {
				return err
			}
			made.Add(1)
		}
		return nil
	})
	return made.Load(), err
}

func spin() {
	for number := uint64(1); ; {
		number = number*6364136223846793005 + 1442695040888963407
	}
}

// handover takes turns with another process.
func (w *worker) handover() (answer, error) {
	o := w.options
	parsed, err := redis.ParseURL(w.url)
	if err != nil {
		return nil, err
	}
	client, ctx, turns := redis.NewClient(parsed), context.Background(), o.Name+":turns"
	return func(argument string) (any, error) {
		times, err := strconv.Atoi(argument)
		if err != nil {
			return nil, err
		}
		moments := make([][2]float64, 0, times)
		for number := range times {
			acquired, err := w.rival.acquire(ctx, o.Name)
			if err != nil {
				return nil, err
			}
			granted := now()
			turn, err := client.Incr(ctx, turns).Result()
			if err != nil {
				return nil, err
			}
			time.Sleep(seconds(o.HoldS))
			moments = append(moments, [2]float64{granted, now()})
			if err := acquired.release(); err != nil {
				return nil, err
			}
			// The other one's turn: a releaser that asked again at once would hand over to itself.
			for last := turn; last == turn && number < times-1; {
				time.Sleep(lookEvery)
				if last, err = client.Get(ctx, turns).Int64(); err != nil {
					return nil, err
				}
			}
		}
		return map[string]any{"moments": moments}, nil
	}, client.Ping(ctx).Err()
}

// crowd has all waiters contend for one lock.
func (w *worker) crowd() (answer, error) {
	o := w.options
	return func(argument string) (any, error) {
		length, err := strconv.ParseFloat(argument, 64)
		if err != nil {
			return nil, err
		}
		grants := make([]int, o.Waiters)
		began, lasted := time.Now(), 0.0
		// A deadline in ctx would shorten the time-to-live of what rueidislock acquires, too.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		time.AfterFunc(seconds(length), func() {
			lasted = time.Since(began).Seconds()
			cancel()
		})
		err = each(o.Waiters, o.Waiters, func(waiter int) error {
			for ctx.Err() == nil {
				acquired, err := w.rival.acquire(ctx, o.Name)
				if err != nil {
					if ctx.Err() != nil {
						return nil // the time was up while it waited
					}
					return err
				}
				if ctx.Err() == nil {
					grants[waiter]++
				}
				time.Sleep(seconds(o.HoldS))
				if err := acquired.release(); err != nil {
					return err
				}
			}
			return nil
		})
		return map[string]any{"grants": grants, "seconds": lasted}, err
	}, nil
}
