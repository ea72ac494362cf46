package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/bench/plot"
)

const (
	// timelineInterval is how often memory is read after the start.
	timelineInterval = 500 * time.Millisecond
	// timelineLength is how long memory is read after the first pod is ready, unless the settings
	// say less.
	timelineLength = 2 * time.Minute
	// podStep is how many pods are added at a time, morePods how many the target adds.
	podStep, morePods = 5, 20
	// podRest is the time from the pods' readiness to the reading.
	podRest = 10 * time.Second
	// podsAtOnce is how many pods are started to measure their rate.
	podsAtOnce = 30
)

// reading is the memory at a point of a curve, in seconds or pods.
type reading struct {
	At        float64 `json:"at"`
	PSS       float64 `json:"pss"`
	Anonymous float64 `json:"anonymous"`
}

// curves show how a system's memory grows, in bytes.
type curves struct {
	Time []reading `json:"time"`
	Pods []reading `json:"pods"`
}

// measureCurves starts a system, follows its memory after the start and then with each pod, and
// puts it under load.
func measureCurves(t *testing.T, r *report, system string) {
	i := newInstallation(t, r, system, 0)
	var c curves
	follow, stop := context.WithCancel(i.ctx)
	defer stop()
	followed := make(chan struct{})
	started := i.start(t)
	go func() {
		defer close(followed)
		for follow.Err() == nil {
			s, err := takeSnapshot(i.host)
			if err != nil {
				i.fail(fmt.Errorf("read processes: %w", err))
				return
			}
			c.Time = append(c.Time, reading{time.Since(started).Seconds(), s.PSS(), s.Anonymous()})
			time.Sleep(timelineInterval)
		}
	}()
	if _, err := observe(i.ctx, i.host, i.kubeconfig, started); err != nil {
		t.Fatal(err)
	}
	time.Sleep(min(timelineLength, r.Options.Settle+r.Options.Idle))
	stop()
	<-followed

	if err := i.load(r, &c); err != nil {
		t.Fatal(err)
	}
	r.Curves[system] = c
}

// load measures the curve of the pods, and adds to the report what is measured once.
func (i *installation) load(r *report, c *curves) error {
	client, err := connect(i.ctx, i.host, i.kubeconfig)
	if err != nil {
		return err
	}
	read := func(pods int) error {
		time.Sleep(podRest)
		s, err := takeSnapshot(i.host)
		if err != nil {
			return fmt.Errorf("read processes: %w", err)
		}
		c.Pods = append(c.Pods, reading{float64(pods), s.PSS(), s.Anonymous()})
		return nil
	}
	if err := read(1); err != nil {
		return err
	}
	for more := 0; more < morePods; more += podStep {
		if _, err := runPods(i.ctx, client, more, podStep); err != nil {
			return err
		}
		if err := read(1 + more + podStep); err != nil {
			return err
		}
	}
	first, last := c.Pods[0], c.Pods[len(c.Pods)-1]
	r.set(perPod, i.system, (last.PSS-first.PSS)/morePods)
	r.set(perPodAnonymous, i.system, (last.Anonymous-first.Anonymous)/morePods)
	if err := removePods(i.ctx, client); err != nil {
		return err
	}
	time.Sleep(podRest)
	for name, measure := range map[string]func() (float64, error){
		onePod:  func() (float64, error) { return startSingly(i.ctx, client) },
		endSeen: func() (float64, error) { return seeEnds(i.ctx, i.host, client) },
	} {
		seconds, err := measure()
		if err != nil {
			return err
		}
		r.set(name, i.system, seconds)
	}
	seconds, err := runPods(i.ctx, client, 0, podsAtOnce)
	if err != nil {
		return err
	}
	r.set(podRate, i.system, podsAtOnce/seconds)
	if err := removePods(i.ctx, client); err != nil {
		return err
	}
	time.Sleep(podRest)
	rate, err := requestRate(i.ctx, client)
	if err != nil {
		return err
	}
	r.set(requests, i.system, rate)
	latency, err := watchLatency(i.ctx, client)
	if err != nil {
		return err
	}
	r.set(latency99, i.system, latency)
	return nil
}

// writeCurves writes tables and images of the curves into a folder.
func (r *report) writeCurves(dir string) error {
	for _, picture := range []struct {
		name, title, x, column string
		marks                  bool
		of                     func(curves) []reading
	}{
		{"memory", "Memory from the start to idle, with one pod", "seconds since the start", "seconds", false, func(c curves) []reading { return c.Time }},
		{"pods", "Memory against the number of pods", "pods", "pods", true, func(c curves) []reading { return c.Pods }},
	} {
		table := [][]string{{"system", picture.column, "pss_mib", "anonymous_mib"}}
		chart := plot.Chart{Title: picture.title, X: picture.x, Y: "MiB, without the pods' own processes"}
		for _, system := range systems() {
			pss := plot.Line{Name: system + ", PSS", Color: colorOf(system), Marks: picture.marks}
			anonymous := plot.Line{Name: "anonymous", Color: colorOf(system), Dashed: true, Marks: picture.marks}
			for _, at := range picture.of(r.Curves[system]) {
				table = append(table, []string{system, decimal(at.At), decimal(at.PSS / mebibyte), decimal(at.Anonymous / mebibyte)})
				pss.Points = append(pss.Points, plot.Point{X: at.At, Y: at.PSS / mebibyte})
				anonymous.Points = append(anonymous.Points, plot.Point{X: at.At, Y: at.Anonymous / mebibyte})
			}
			chart.Lines = append(chart.Lines, pss, anonymous)
		}
		if err := writeFile(filepath.Join(dir, picture.name+".csv"), func(file *os.File) error { return csv.NewWriter(file).WriteAll(table) }); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, picture.name+".png"), func(file *os.File) error { return chart.PNG(file) }); err != nil {
			return err
		}
	}
	return nil
}

func colorOf(system string) color.RGBA {
	if system == kedgeName {
		return color.RGBA{0x0b, 0x6e, 0x99, 0xff}
	}
	return color.RGBA{0xd9, 0x5f, 0x02, 0xff}
}

func decimal(value float64) string { return strconv.FormatFloat(value, 'f', 2, 64) }

func writeFile(path string, write func(*os.File) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return file.Close()
}
