package resourcemetrics

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// kubeletWindow is the longest time over which a kubelet of kedge computes a rate: it
	// measures a container at the latest this long after the last time (30 seconds, and up
	// to as much again by chance: see kubelet.restingInterval).
	//upstream:relies-on github.com/google/cadvisor/lib/manager/container.go containerData.nextHousekeepingInterval
	kubeletWindow = 60 * time.Second
	// measuredTwice is the age from which a container has been measured twice when this process
	// asks. The kubelet measures again before it answers, if that was ten seconds ago.
	measuredTwice = 30 * time.Second
	// youngest is the age from which metrics-server computes a rate from all that a
	// container has used since its start (pkg/storage/pod.go,
	// freshContainerMinMetricsResolution).
	youngest = 10 * time.Second
	// swap is the name of a resource that only kubectl and metrics-server know.
	//upstream:relies-on k8s.io/kubectl/pkg/metricsutil/metrics_printer.go ResourceSwap
	swap corev1.ResourceName = "swap"
)

// usage is what a node or a container uses.
type usage struct {
	// started is when the container started, and at when the kubelet measured. Both are
	// the node's time, in whole seconds. at is zero if the kubelet has no figures.
	started, at time.Time
	// total is the processor time since the start, in nanoseconds.
	total uint64
	// known says that the fields below are known. Without it, the others still serve to
	// compute the next rate.
	known bool
	// rate is processor time per time in billionths, over window.
	rate   uint64
	window time.Duration
	// memory is the working set, in bytes. swap is nil if the kubelet does not tell.
	memory uint64
	swap   *uint64
}

// measured returns the usage in a kubelet's figures. before is what was known of the
// same container, or nil. settled says that the kubelet has run for so long that a rate
// of zero is to be believed: right after its start it reports zero, because it has
// measured only once.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/helper.go cadvisorInfoToCPUandMemoryStats
func measured(f figures, before *usage, settled bool) usage {
	u := usage{started: f.StartTime.Time}
	cpu, memory := f.CPU, f.Memory
	// As with metrics-server, zero is no figure: what runs has used both.
	if cpu == nil || cpu.Time.IsZero() || isZero(cpu.UsageCoreNanoSeconds) || memory == nil || isZero(memory.WorkingSetBytes) {
		return u
	}
	u.at, u.total, u.memory = cpu.Time.Time, *cpu.UsageCoreNanoSeconds, *memory.WorkingSetBytes
	if f.Swap != nil {
		u.swap = f.Swap.SwapUsageBytes
	}
	if before != nil && !before.started.Equal(u.started) {
		before = nil // it has been restarted since
	}
	age := u.at.Sub(u.started)
	switch {
	case !isZero(cpu.UsageNanoCores):
		u.known, u.rate, u.window = true, *cpu.UsageNanoCores, kubeletWindow
		if age > 0 {
			u.window = min(age, kubeletWindow)
		}
	case before != nil && before.known && before.at.Equal(u.at):
		u.known, u.rate, u.window = true, before.rate, before.window
	case before != nil && u.at.After(before.at) && u.total > before.total && before.total > 0:
		u.known, u.window = true, u.at.Sub(before.at)
		u.rate = rate(u.total-before.total, u.window)
	case age >= 0 && age < measuredTwice:
		u.known, u.window = age >= youngest, age
		u.rate = rate(u.total, age)
	default:
		u.known, u.window = settled || before != nil && u.total == before.total, kubeletWindow
	}
	return u
}

func isZero(figure *uint64) bool { return figure == nil || *figure == 0 }

// rate returns billionths of a processor.
func rate(nanoseconds uint64, window time.Duration) uint64 {
	if window <= 0 {
		return 0
	}
	return uint64(float64(nanoseconds) / window.Seconds())
}

// list returns the usage as the API has it.
func (u *usage) list() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    quantity(u.rate, resource.DecimalSI, resource.Nano),
		corev1.ResourceMemory: quantity(u.memory, resource.BinarySI, 0),
	}
	if u.swap != nil {
		list[swap] = quantity(*u.swap, resource.BinarySI, 0)
	}
	return list
}

func quantity(figure uint64, format resource.Format, scale resource.Scale) resource.Quantity {
	q := resource.NewScaledQuantity(int64(min(figure, math.MaxInt64)), scale)
	q.Format = format
	return *q
}
