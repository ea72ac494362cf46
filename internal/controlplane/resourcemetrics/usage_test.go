package resourcemetrics

import (
	"fmt"
	"math"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// began is when the containers of these tests started.
var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// after returns the time some seconds after began.
func after(seconds int) metav1.Time {
	return metav1.NewTime(began.Add(time.Duration(seconds) * time.Second))
}

func TestMeasured(t *testing.T) {
	figure := func(n uint64) *uint64 { return &n }
	cpu := func(seconds int, total, rate *uint64) *stats.CPUStats {
		return &stats.CPUStats{Time: after(seconds), UsageCoreNanoSeconds: total, UsageNanoCores: rate}
	}
	memory := &stats.MemoryStats{WorkingSetBytes: figure(5 << 20)}
	earlier := &usage{started: began, at: after(40).Time, total: 2e9, known: true, rate: 7, window: 11 * time.Second}
	for name, test := range map[string]struct {
		cpu     *stats.CPUStats
		memory  *stats.MemoryStats
		before  *usage
		settled bool
		want    string // rate over window, or nothing
	}{
		"the kubelet's rate":        {cpu(100, figure(9e9), figure(250e6)), memory, nil, true, "250000000 over 1m0s"},
		"it wins over ours":         {cpu(50, figure(9e9), figure(250e6)), memory, earlier, true, "250000000 over 50s"},
		"a young container's":       {cpu(12, figure(9e9), figure(250e6)), memory, nil, true, "250000000 over 12s"},
		"idle":                      {cpu(100, figure(9e9), figure(0)), memory, nil, true, "0 over 1m0s"},
		"measured once":             {cpu(100, figure(9e9), figure(0)), memory, nil, false, ""},
		"measured before":           {cpu(50, figure(7e9), figure(0)), memory, earlier, false, "500000000 over 10s"},
		"idle since before":         {cpu(50, figure(2e9), figure(0)), memory, earlier, false, "0 over 1m0s"},
		"the same measurement":      {cpu(40, figure(2e9), figure(0)), memory, earlier, false, "7 over 11s"},
		"without a rate":            {cpu(100, figure(9e9), nil), memory, nil, false, ""},
		"restarted":                 {cpu(50, figure(7e9), figure(0)), memory, &usage{started: began.Add(-time.Hour), at: after(40).Time, total: 2e9, known: true}, false, ""},
		"fewer than before":         {cpu(50, figure(1e9), figure(0)), memory, earlier, false, ""},
		"just started":              {cpu(9, figure(1e9), figure(0)), memory, nil, true, ""},
		"started a moment ago":      {cpu(10, figure(1e9), figure(0)), memory, nil, true, "100000000 over 10s"},
		"started in the future":     {cpu(-5, figure(1e9), figure(0)), memory, nil, false, ""},
		"no processor time":         {cpu(100, figure(0), figure(0)), memory, nil, true, ""},
		"processor time missing":    {cpu(100, nil, figure(1)), memory, nil, true, ""},
		"no time":                   {&stats.CPUStats{UsageCoreNanoSeconds: figure(1), UsageNanoCores: figure(1)}, memory, nil, true, ""},
		"no memory":                 {cpu(100, figure(9e9), figure(1)), &stats.MemoryStats{WorkingSetBytes: figure(0)}, nil, true, ""},
		"memory missing":            {cpu(100, figure(9e9), figure(1)), nil, nil, true, ""},
		"processor missing":         {nil, memory, nil, true, ""},
		"more than the API can say": {cpu(100, figure(9e9), figure(math.MaxUint64)), memory, nil, true, "18446744073709551615 over 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			u := measured(figures{StartTime: metav1.NewTime(began), CPU: test.cpu, Memory: test.memory}, test.before, test.settled)
			got := ""
			if u.known {
				got = fmt.Sprintf("%d over %v", u.rate, u.window)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if list := u.list(); list.Cpu().Sign() < 0 || list.Memory().Sign() < 0 {
				t.Errorf("negative: %v", list)
			}
		})
	}
}

func TestQuantities(t *testing.T) {
	swapped := uint64(3 << 20)
	u := usage{rate: 123456789, memory: 5<<20 + 1, swap: &swapped}
	list := u.list()
	if cpu, memory, swap := list.Cpu().String(), list.Memory().String(), list[swap]; cpu != "123456789n" || memory != "5242881" || swap.String() != "3Mi" {
		t.Errorf("got %s, %s, %s", cpu, memory, swap.String())
	}
	u.swap = nil
	if list := u.list(); len(list) != 2 {
		t.Errorf("got %v", list)
	}
}
