package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// result is one start of one system. Memory is in bytes.
type result struct {
	System string     `json:"system"`
	Start  startTimes `json:"seconds"`
	// Warm is seconds from a start on the same data to /readyz.
	Warm float64 `json:"warmSeconds"`
	// PSS and Anonymous are of everything but the user's pod: processes, shims,
	// the pod's first process, and Files, which is tmpfs and memfd.
	PSS            float64 `json:"pss"`
	Anonymous      float64 `json:"anonymous"`
	ShimsPSS       float64 `json:"shimsPSS"`
	ShimsAnonymous float64 `json:"shimsAnonymous"`
	Files          float64 `json:"tmpfsAndMemfd"`
	// Cgroup is what the kernel counts, page cache included.
	Cgroup float64 `json:"memoryCgroup"`
	// CPU is percent of one core.
	CPU      float64 `json:"cpuPercent"`
	ShimsCPU float64 `json:"shimsCPUPercent"`
	// WrittenBefore is bytes that reached the disk from the start until the idle
	// time; Written is bytes an hour in it.
	WrittenBefore float64 `json:"writtenBefore"`
	Written       float64 `json:"writtenPerHour"`
	// Used is what is in use on the disk when idle.
	Used float64 `json:"diskUsed"`
	// Programs has PSS and the rest, totals since their start, by program.
	Programs map[string]usage `json:"programs"`
}

const (
	// samples is how often memory is read in the idle time, if that is long; it
	// counts the median.
	samples        = 20
	sampleInterval = 2 * time.Second
	// clientInterval is how often a user asks.
	clientInterval = time.Minute
	clientTimeout  = 20 * time.Second
)

// measureIdle watches for a time in which nobody asks for anything, except for
// one `kubectl get pods -A` a minute.
func (r *result) measureIdle(ctx context.Context, i *installation, idle time.Duration) error {
	written, err := i.disk.Written()
	if err != nil {
		return err
	}
	r.WrittenBefore = written - i.writtenAtStart

	asking, stop := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() { asked <- i.ask(asking, min(clientInterval/2, idle/2)) }()

	var pss, anonymous, shimsPSS, shimsAnonymous, files, cgroup []float64
	var first, last snapshot
	began := time.Now()
	for taken := 0; ; taken++ {
		if last, err = takeSnapshot(i.host); err != nil {
			err = fmt.Errorf("read processes: %w", err)
			break
		}
		var counted float64
		if counted, err = i.memory.Usage(); err != nil {
			break
		}
		if taken == 0 {
			first = last
		}
		pss = append(pss, last.PSS())
		anonymous = append(anonymous, last.Anonymous())
		shimsPSS = append(shimsPSS, last.Shims.PSS)
		shimsAnonymous = append(shimsAnonymous, last.Shims.Anonymous)
		files = append(files, last.Files)
		cgroup = append(cgroup, counted)
		if time.Since(began) >= idle {
			break
		}
		time.Sleep(min(max(sampleInterval, idle/samples), idle-time.Since(began)))
	}
	took := time.Since(began)
	stop()
	if err := errors.Join(err, <-asked); err != nil {
		return err
	}
	after, err := i.disk.Written()
	if err != nil {
		return err
	}
	if r.Used, err = i.disk.Used(); err != nil {
		return err
	}
	r.Used -= i.usedAtStart
	r.Written = (after - written) / took.Hours()
	r.PSS, r.Anonymous = median(pss), median(anonymous)
	r.ShimsPSS, r.ShimsAnonymous = median(shimsPSS), median(shimsAnonymous)
	r.Files, r.Cgroup = median(files), median(cgroup)
	r.CPU = 100 * (last.CPU() - first.CPU()) / took.Seconds()
	r.ShimsCPU = 100 * (last.Shims.CPU - first.Shims.CPU) / took.Seconds()
	r.Programs = last.Programs
	return nil
}

// ask runs upstream's kubectl, after a time and then each minute, until ctx ends.
func (i *installation) ask(ctx context.Context, after time.Duration) error {
	program := filepath.Join(i.repository, binariesDir, clientName)
	// Its text shall not count as memory of the host's cgroup.
	if err := readAll(program); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(after):
		}
		after = clientInterval
		// A call that has begun is not cut off by the end of the idle time.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), clientTimeout)
		output, err := i.host.Command(call, program, "--kubeconfig="+i.kubeconfig, "get", "pods", "-A").CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("kubectl get pods -A: %w: %s", err, output)
		}
	}
}

func readAll(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(io.Discard, file)
	return err
}
