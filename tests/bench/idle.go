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

// result has the measurements of one start of one system. Memory is in bytes.
type result struct {
	System string     `json:"system"`
	Start  startTimes `json:"seconds"`
	// Warm is the time in seconds from a start on the same data to /readyz.
	Warm float64 `json:"warmSeconds"`
	atRest
}

// atRest has the measurements of a system in an idle time. Memory is in bytes.
type atRest struct {
	// PSS and Anonymous are those of everything except the user's pod: processes, shims, the pod's
	// first process, and Files, which is tmpfs and memfd.
	PSS       float64 `json:"pss"`
	Anonymous float64 `json:"anonymous"`
	// OwnPSS and OwnAnonymous are those parts of PSS and Anonymous that belong to no pod: they are
	// without shims and without the pods' first processes.
	OwnPSS         float64 `json:"ownPSS"`
	OwnAnonymous   float64 `json:"ownAnonymous"`
	ShimsPSS       float64 `json:"shimsPSS"`
	ShimsAnonymous float64 `json:"shimsAnonymous"`
	Files          float64 `json:"tmpfsAndMemfd"`
	// Cgroup is the memory that the kernel counts, including page cache.
	Cgroup float64 `json:"memoryCgroup"`
	// CPU is percent of one core.
	CPU      float64 `json:"cpuPercent"`
	ShimsCPU float64 `json:"shimsCPUPercent"`
	// WrittenBefore is how many bytes reached the disk from the start to the idle time. Written is
	// bytes per hour during the idle time.
	WrittenBefore float64 `json:"writtenBefore"`
	Written       float64 `json:"writtenPerHour"`
	// Used is how many bytes of the disk are in use when idle.
	Used float64 `json:"diskUsed"`
	// Programs has the PSS, and totals since the start, by program.
	Programs map[string]usage `json:"programs"`
}

const (
	// samples is how often memory is read in a long idle time. The median counts.
	samples        = 20
	sampleInterval = 2 * time.Second
	// clientInterval is how often a user sends a request.
	clientInterval = time.Minute
	clientTimeout  = 20 * time.Second
)

// measureIdle watches the system while there are no requests, except one `kubectl get pods -A` a
// minute.
func (r *result) measureIdle(ctx context.Context, i *installation, idle time.Duration) error {
	asking, stop := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() { asked <- i.ask(asking, min(clientInterval/2, idle/2)) }()
	err := r.atRest.measure(i, idle)
	stop()
	return errors.Join(err, <-asked)
}

// measure watches the system for a time.
func (r *atRest) measure(i *installation, idle time.Duration) error {
	written, err := i.disk.Written()
	if err != nil {
		return err
	}
	r.WrittenBefore = written - i.writtenAtStart

	var pss, anonymous, ownPSS, ownAnonymous, shimsPSS, shimsAnonymous, files, cgroup []float64
	var first, last snapshot
	began := time.Now()
	for taken := 0; ; taken++ {
		if last, err = takeSnapshot(i.host); err != nil {
			return fmt.Errorf("read processes: %w", err)
		}
		counted, err := i.memory.Usage()
		if err != nil {
			return err
		}
		if taken == 0 {
			first = last
		}
		pss = append(pss, last.PSS())
		anonymous = append(anonymous, last.Anonymous())
		ownPSS = append(ownPSS, last.Installation.PSS+last.Files)
		ownAnonymous = append(ownAnonymous, last.Installation.Anonymous+last.Files)
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
	r.OwnPSS, r.OwnAnonymous = median(ownPSS), median(ownAnonymous)
	r.ShimsPSS, r.ShimsAnonymous = median(shimsPSS), median(shimsAnonymous)
	r.Files, r.Cgroup = median(files), median(cgroup)
	r.CPU = 100 * (last.CPU() - first.CPU()) / took.Seconds()
	r.ShimsCPU = 100 * (last.Shims.CPU - first.Shims.CPU) / took.Seconds()
	r.Programs = last.Programs
	return nil
}

// ask runs upstream's kubectl after a time, and then each minute, until ctx ends.
func (i *installation) ask(ctx context.Context, after time.Duration) error {
	program := filepath.Join(i.repository, binariesDir, clientName)
	// Its text must not count as memory of the host's cgroup.
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
		// The end of the idle time does not interrupt a call that has begun.
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
