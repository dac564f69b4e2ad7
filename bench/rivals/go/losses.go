package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// losses are kept in memory until the next result is written: printing would delay what is measured.
type losses struct {
	mutex   sync.Mutex
	lines   []string
	written int
	indexes map[int]bool
}

// add is called when the user hears that a lock is lost.
func (l *losses) add(index int, reason string) {
	at := now()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.indexes == nil {
		l.indexes = map[int]bool{}
	}
	l.indexes[index] = true
	l.lines = append(l.lines, fmt.Sprintf("lost %d %.9f %s", index, at, reason))
}

func (l *losses) has(index int) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.indexes[index]
}

func (l *losses) count() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.lines)
}

// unwritten returns the lines that no earlier call has returned.
func (l *losses) unwritten() []string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	lines := l.lines[l.written:]
	l.written = len(l.lines)
	return lines
}

// now returns CLOCK_MONOTONIC in seconds, which is one clock for all processes of a machine.
func now() float64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return float64(at.Sec) + float64(at.Nsec)/1e9
}
