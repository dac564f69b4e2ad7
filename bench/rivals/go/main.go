// Command rivals is the benchmark worker of the rivals in Go: rivals PROGRAM MODE URL OPTIONS.
//
// PROGRAM is a name in programs; the modes, OPTIONS (a JSON object) and the lines on standard input and output are
// those of all benchmark workers. To add a rival: one file that implements the interface rival, and a line in programs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

var programs = map[string]func(url string, timeout time.Duration) (rival, error){
	"rueidislock": newRueidislock,
	"redsync":     newRedsync,
	"bsm":         newBsm,
}

// An answer returns the result of one line "go ARGUMENT".
type answer func(argument string) (any, error)

var modes = map[string]func(*worker) (answer, error){
	"hold":     (*worker).hold,
	"pairs":    (*worker).pairs,
	"handover": (*worker).handover,
	"crowd":    (*worker).crowd,
}

type options struct {
	TimeoutS float64 `json:"timeout_s"`
	HoldS    float64 `json:"hold_s"`
	WarmS    float64 `json:"warm_s"`
	Locks    int     `json:"locks"`
	First    int     `json:"first"`
	Prefix   string  `json:"prefix"`
	Callers  int     `json:"callers"`
	Spin     int     `json:"spin"`
	Waiters  int     `json:"waiters"`
	Name     string  `json:"name"`
}

type worker struct {
	rival   rival
	url     string
	options options
	losses  losses
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: rivals PROGRAM MODE URL OPTIONS")
		os.Exit(2)
	}
	w := &worker{url: os.Args[3]}
	answer, err := w.start(os.Args[1], os.Args[2], os.Args[4])
	if err != nil {
		say("failed", err)
		return
	}
	say("up")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		result, err := answer(strings.TrimPrefix(lines.Text(), "go "))
		for _, line := range w.losses.unwritten() {
			say(line)
		}
		if err != nil {
			say("failed", err)
			continue
		}
		text, err := json.Marshal(result)
		if err != nil {
			panic(err)
		}
		say("result", string(text))
	}
}

// start connects, and returns when the mode is ready to answer.
func (w *worker) start(program, mode, text string) (answer, error) {
	connect, known := programs[program]
	if !known {
		return nil, fmt.Errorf("no %s", program)
	}
	begin, known := modes[mode]
	if !known {
		return nil, fmt.Errorf("no %s", mode)
	}
	err := json.Unmarshal([]byte(text), &w.options)
	if err != nil {
		return nil, err
	}
	w.rival, err = connect(w.url, seconds(w.options.TimeoutS))
	if err != nil {
		return nil, err
	}
	return begin(w)
}

// say writes one line. Standard output has no buffer.
func say(words ...any) {
	fmt.Println(oneLine(strings.TrimSpace(fmt.Sprintln(words...))))
}

func oneLine(text string) string {
	return strings.Join(strings.Fields(text), " ")
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}
