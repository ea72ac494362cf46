package kubelet

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/cadvisor/lib/manager"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
)

const (
	// restingInterval is how often cAdvisor measures each cgroup if nobody asks. cAdvisor waits up to
	// as much again by chance, and keeps what it measures for two minutes, so two measurements
	// are always there, of which it makes rates.
	//
	//upstream:relies-on github.com/google/cadvisor/lib/manager/container.go containerData.nextHousekeepingInterval
	restingInterval = 30 * time.Second
	// freshness is the greatest age of a measurement in an answer. It is the interval of upstream.
	//
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cadvisor/cadvisor_linux.go defaultHousekeepingInterval
	freshness = 10 * time.Second
	// afterQuestion is how long after a question cAdvisor keeps measuring as often as upstream does.
	afterQuestion = time.Minute
)

// measuring lets cAdvisor rest while nobody asks what pods use. The kubelet's eviction manager asks
// every ten seconds, but reads what cAdvisor says of pods only if memory is short. While it is, and
// after a request for metrics, every answer is as fresh as upstream's.
type measuring struct {
	cadvisor.Interface
	now func() time.Time

	mu    sync.Mutex
	asked time.Time
	// short says of which cgroups most of the memory is in use.
	short map[string]bool
	// all is the last answer about all cgroups, and at is its time.
	all map[string]cadvisorapi.ContainerInfo
	at  time.Time
}

// lengthenInterval lets cAdvisor measure less often. The user's arguments are applied later, and win.
// cAdvisor has this setting in a variable of the process.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/options/globalflags_linux.go addCadvisorFlags
func lengthenInterval() { *manager.HousekeepingInterval = restingInterval }

// newMeasuring returns nil if cAdvisor must not rest: if the user's arguments have another interval,
// or if usual is false. usual says whether the thresholds for evictions and the runtime are kedge's
// own. With other thresholds, pods may be evicted while most of the memory is free. Of the pods of
// another runtime, cAdvisor may also measure the room on disks.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cadvisor/util.go UsingLegacyCadvisorStats
func newMeasuring(usual bool) *measuring {
	if *manager.HousekeepingInterval != restingInterval {
		return nil
	}
	if !usual {
		*manager.HousekeepingInterval = freshness
		return nil
	}
	return &measuring{now: time.Now, short: map[string]bool{}}
}

// measureOnRequest puts k.measuring between the kubelet and its cAdvisor, which upstream has made
// by the time when it calls this (see useRuntime).
func (k *Kubelet) measureOnRequest(dependencies *kubelet.Dependencies) {
	k.measuring.Interface = dependencies.CAdvisorInterface
	dependencies.CAdvisorInterface = k.measuring
}

// isQuestion tells whether a request is about what pods use.
func isQuestion(path string) bool {
	return strings.HasPrefix(path, "/metrics/") || strings.HasPrefix(path, "/stats")
}

// ask says that somebody asks for measurements. Strangers can do that too: then cAdvisor measures as
// often as upstream's.
func (m *measuring) ask() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = m.now()
}

// attentive tells whether answers must be fresh.
func (m *measuring) attentive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.short) > 0 || !m.asked.IsZero() && m.now().Sub(m.asked) < afterQuestion
}

// ContainerInfoV2 implements cadvisor.Interface.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/eviction/eviction_manager.go managerImpl.synchronize managerImpl.localStorageEviction
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/server/stats/summary.go summaryProviderImpl.Get
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/cadvisor_stats_provider.go getCadvisorContainerInfo
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/helper.go getCgroupInfo
func (m *measuring) ContainerInfoV2(name string, options cadvisorapi.RequestOptions) (map[string]cadvisorapi.ContainerInfo, error) {
	everything := name == "/" && options.Recursive && options.MaxAge == nil
	if options.MaxAge == nil && (m.attentive() || options.Recursive && !everything) {
		options.MaxAge = new(freshness)
	} else if everything {
		if all := m.recent(); all != nil {
			return all, nil
		}
	}
	infos, err := m.Interface.ContainerInfoV2(name, options)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !options.Recursive:
		if err == nil && fills(infos[name]) {
			m.short[name] = true
		} else {
			delete(m.short, name) // also if the cgroup is gone
		}
	case everything && err == nil:
		m.all, m.at = maps.Clone(infos), m.now()
	}
	return infos, err
}

// recent returns the last answer about all cgroups, or nil if it is older than restingInterval.
func (m *measuring) recent() map[string]cadvisorapi.ContainerInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil || m.now().Sub(m.at) >= restingInterval {
		return nil
	}
	return maps.Clone(m.all)
}

// fills tells whether a cgroup uses more than three quarters of the memory that it may use. For the
// root, that is the machine's.
//
//upstream:relies-on github.com/google/cadvisor/lib/manager/manager.go manager.getAdjustedSpec
func fills(cgroup cadvisorapi.ContainerInfo) bool {
	if len(cgroup.Stats) == 0 || cgroup.Stats[len(cgroup.Stats)-1].Memory == nil {
		return false
	}
	limit := cgroup.Spec.Memory.Limit
	return limit > 0 && cgroup.Stats[len(cgroup.Stats)-1].Memory.WorkingSet > limit-limit/4
}

// GetRequestedContainersInfo implements cadvisor.Interface.
func (m *measuring) GetRequestedContainersInfo(name string, options cadvisorapi.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	if options.MaxAge == nil {
		options.MaxAge = new(freshness)
	}
	return m.Interface.GetRequestedContainersInfo(name, options)
}
