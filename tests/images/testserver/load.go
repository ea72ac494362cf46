package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// cgroupUsage is what load answers: what the cgroup of the container has used, as the kernel counts it.
type cgroupUsage struct {
	// Processor is in nanoseconds since the start, Memory is the working set in bytes.
	Processor uint64 `json:"processor"`
	Memory    uint64 `json:"memory"`
}

// load uses as many thousandths of a processor, and holds as many MiB, and answers on port 8080 what
// its container uses. A request with ?millicores=N changes the first.
func load(millicores, mebibytes string) error {
	var rate atomic.Int64
	n, err := strconv.ParseInt(millicores, 10, 64)
	if err != nil {
		return err
	}
	rate.Store(n)
	size, err := strconv.Atoi(mebibytes)
	if err != nil {
		return err
	}
	held := make([]byte, size<<20)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	go burn(&rate)
	return http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := strconv.ParseInt(r.FormValue("millicores"), 10, 64); err == nil {
			rate.Store(n)
		}
		used, err := ofCgroup()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(used)
		held[0]++
	}))
}

// burn keeps the processor time of this process at a rate.
func burn(rate *atomic.Int64) {
	const most = float64(500 * time.Millisecond) // what a busy machine has not given is not made up for
	var owed float64
	last, used := time.Now(), processorTime()
	for {
		time.Sleep(10 * time.Millisecond)
		now, total := time.Now(), processorTime()
		owed = min(owed+float64(now.Sub(last))*float64(rate.Load())/1000-float64(total-used), most)
		last, used = now, total
		for float64(processorTime()-total) < owed {
		}
	}
}

// processorTime returns what this process has used.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ofCgroup reads the files of the container's cgroup, of version 2 or 1.
func ofCgroup() (used cgroupUsage, err error) {
	const root = "/sys/fs/cgroup/"
	if _, statErr := os.Stat(root + "cgroup.controllers"); statErr == nil {
		if used.Processor, err = field(root+"cpu.stat", "usage_usec"); err != nil {
			return used, err
		}
		used.Processor *= 1000
		return used, used.workingSet(root+"memory.current", root+"memory.stat", "inactive_file")
	}
	if used.Processor, err = field(root+"cpuacct/cpuacct.usage", ""); err != nil {
		return used, err
	}
	return used, used.workingSet(root+"memory/memory.usage_in_bytes", root+"memory/memory.stat", "total_inactive_file")
}

func (u *cgroupUsage) workingSet(usage, stat, inactive string) error {
	all, err := field(usage, "")
	if err != nil {
		return err
	}
	cache, err := field(stat, inactive)
	u.Memory = all - min(all, cache)
	return err
}

// field reads the number behind a name in a file, or the only one.
func field(file, name string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if name == "" && len(words) == 1 || len(words) == 2 && words[0] == name {
			return strconv.ParseUint(words[len(words)-1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}
