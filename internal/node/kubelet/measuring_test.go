package kubelet

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/manager"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
)

// fakeCAdvisor notes what it was asked. Its answers are about a cgroup with a limit of 100 bytes.
type fakeCAdvisor struct {
	cadvisor.Interface
	asked   []cadvisorapi.RequestOptions
	used    uint64
	failure error
}

func (f *fakeCAdvisor) ContainerInfoV2(name string, options cadvisorapi.RequestOptions) (map[string]cadvisorapi.ContainerInfo, error) {
	f.asked = append(f.asked, options)
	answer := cadvisorapi.ContainerInfo{
		Spec:  cadvisorapi.ContainerSpec{Memory: cadvisorapi.MemorySpec{Limit: 100}},
		Stats: []*cadvisorapi.ContainerStats{{Memory: &cadvisorapi.MemoryStats{WorkingSet: f.used}}},
	}
	return map[string]cadvisorapi.ContainerInfo{name: answer}, f.failure
}

func (f *fakeCAdvisor) GetRequestedContainersInfo(_ string, options cadvisorapi.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	f.asked = append(f.asked, options)
	return nil, nil
}

// The questions of the kubelet.
var (
	aboutNode = cadvisorapi.RequestOptions{Count: 2, MaxAge: new(time.Duration)}
	aboutAll  = cadvisorapi.RequestOptions{Count: 2, Recursive: true}
)

// clocked returns a measuring over a fake, and the time that it goes by.
func clocked() (*measuring, *fakeCAdvisor, *time.Time) {
	now, fake := time.Unix(1_000_000, 0), &fakeCAdvisor{used: 10}
	return &measuring{Interface: fake, now: func() time.Time { return now }, short: map[string]bool{}}, fake, &now
}

// synchronize asks as the eviction manager does. It returns the last question that reached cAdvisor
// about everything, or nil.
func synchronize(t *testing.T, m *measuring, fake *fakeCAdvisor) *cadvisorapi.RequestOptions {
	t.Helper()
	fake.asked = nil
	for _, options := range []cadvisorapi.RequestOptions{aboutNode, aboutAll} {
		infos, err := m.ContainerInfoV2("/", options)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := infos["/"]; !ok {
			t.Fatalf("the answer is %v: want the root", infos)
		}
	}
	if fake.asked[0].MaxAge == nil || *fake.asked[0].MaxAge != 0 {
		t.Errorf("the node was measured with the greatest age %v, want 0", fake.asked[0].MaxAge)
	}
	if len(fake.asked) < 2 {
		return nil
	}
	return &fake.asked[1]
}

func TestEvictionManagerAtRest(t *testing.T) {
	m, fake, now := clocked()
	if got := synchronize(t, m, fake); got == nil || got.MaxAge != nil {
		t.Errorf("the first question was %v: want it to get to cAdvisor, with no age", got)
	}
	*now = now.Add(restingInterval - time.Second)
	if got := synchronize(t, m, fake); got != nil {
		t.Errorf("cAdvisor was asked again for everything: %v", got)
	}
	*now = now.Add(2 * time.Second)
	if got := synchronize(t, m, fake); got == nil {
		t.Error("an answer was given that is older than restingInterval")
	}
}

// TestAnswersAreFresh checks what happens after a request, and while memory is short.
func TestAnswersAreFresh(t *testing.T) {
	for name, test := range map[string]struct {
		begin, end func(*measuring, *fakeCAdvisor, *time.Time)
	}{
		"a request": {
			func(m *measuring, _ *fakeCAdvisor, _ *time.Time) {
				front := &front{next: http.NotFoundHandler(), measuring: m}
				front.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/stats/summary", nil))
			},
			func(_ *measuring, _ *fakeCAdvisor, now *time.Time) { *now = now.Add(afterQuestion) },
		},
		"memory is short": {
			func(_ *measuring, fake *fakeCAdvisor, _ *time.Time) { fake.used = 76 },
			func(_ *measuring, fake *fakeCAdvisor, _ *time.Time) { fake.used = 75 },
		},
		"memory of a cgroup that goes is short": {
			func(m *measuring, fake *fakeCAdvisor, _ *time.Time) {
				fake.used = 76
				if _, err := m.ContainerInfoV2("/gone", aboutNode); err != nil {
					panic(err)
				}
				fake.used = 10
			},
			func(m *measuring, fake *fakeCAdvisor, _ *time.Time) {
				fake.failure = errors.New("unable to find data")
				if _, err := m.ContainerInfoV2("/gone", aboutNode); err == nil {
					panic("the fake did not fail")
				}
				fake.failure = nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, fake, now := clocked()
			synchronize(t, m, fake)
			test.begin(m, fake, now)
			for range 2 {
				if got := synchronize(t, m, fake); got == nil || got.MaxAge == nil || *got.MaxAge != freshness {
					t.Errorf("everything was asked with %v: want the greatest age %v", got, freshness)
				}
			}
			test.end(m, fake, now)
			synchronize(t, m, fake)
			if got := synchronize(t, m, fake); got != nil {
				t.Errorf("cAdvisor was asked for everything afterwards: %v", got)
			}
		})
	}
}

func TestQuestionsOfOthers(t *testing.T) {
	m, fake, _ := clocked()
	if _, err := m.ContainerInfoV2("/kubepods/pod1", aboutAll); err != nil {
		t.Fatal(err)
	}
	if _, err := m.GetRequestedContainersInfo("/", aboutAll); err != nil {
		t.Fatal(err)
	}
	for _, options := range fake.asked {
		if options.MaxAge == nil || *options.MaxAge != freshness {
			t.Errorf("cAdvisor was asked with the greatest age %v, want %v", options.MaxAge, freshness)
		}
	}
}

// TestFailureIsNotKept checks that an answer with an error is not given again.
func TestFailureIsNotKept(t *testing.T) {
	m, fake, _ := clocked()
	fake.failure = errors.New("unable to find data")
	if _, err := m.ContainerInfoV2("/", aboutAll); !errors.Is(err, fake.failure) {
		t.Errorf("the error is %v, want cAdvisor's", err)
	}
	fake.failure = nil
	if synchronize(t, m, fake) == nil {
		t.Error("the answer that failed was given again")
	}
}

// TestUsersIntervals checks that the user's settings of the kubelet win.
func TestUsersIntervals(t *testing.T) {
	defer func(before time.Duration) { *manager.HousekeepingInterval = before }(*manager.HousekeepingInterval)
	const soft, grace = "eviction-soft=memory.available<50%", "eviction-soft-grace-period=memory.available=1m"
	for name, test := range map[string]struct {
		runtime Runtime
		args    []string
		want    time.Duration
		rests   bool
	}{
		"none":             {fakeRuntime{}, nil, restingInterval, true},
		"something else":   {fakeRuntime{}, []string{"max-pods=50"}, restingInterval, true},
		"an interval":      {fakeRuntime{}, []string{"housekeeping-interval=5s"}, 5 * time.Second, false},
		"upstream's":       {fakeRuntime{}, []string{"housekeeping-interval=10s"}, 10 * time.Second, false},
		"a threshold":      {fakeRuntime{}, []string{"eviction-hard=memory.available<50%"}, freshness, false},
		"a soft threshold": {fakeRuntime{}, []string{soft, grace}, freshness, false},
		"their runtime":    {nil, nil, freshness, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Runtime, cfg.Args = test.runtime, test.args
			k, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := *manager.HousekeepingInterval; got != test.want || (k.measuring != nil) != test.rests {
				t.Errorf("the interval is %v, and cAdvisor rests: %v; want %v and %v", got, k.measuring != nil, test.want, test.rests)
			}
		})
	}
}
