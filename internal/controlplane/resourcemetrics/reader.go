package resourcemetrics

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

const (
	// fresh is how long an answer of a kubelet is given again, and how long a kubelet
	// that has not answered is not asked again. Kubelets measure no more often.
	fresh = 10 * time.Second
	// kept is how long answers are kept after that, to compute rates.
	kept = time.Minute
	// patience is how long a kubelet may take.
	patience = 5 * time.Second
	// atOnce is how many kubelets are asked at the same time.
	atOnce = 16
	// settling is how long after the start of this process rates of zero are not
	// believed, because this host's kubelet has just started too, and how long there are
	// no warnings.
	settling = 45 * time.Second
)

// reader asks kubelets, and keeps their answers for a while.
type reader struct {
	ctx     context.Context
	kubelet func(*corev1.Node) (string, error)
	// transport follows no redirects: a node must not send the server elsewhere.
	transport http.RoundTripper
	log       *logrus.Entry
	slots     chan struct{}
	started   time.Time

	mu sync.Mutex
	// answers are those of the nodes that somebody has asked for, by their names.
	answers map[string]*answer
	// forgetting is the timer that calls forget. It is nil without answers.
	forgetting *time.Timer
}

// answer is what a kubelet has said.
type answer struct {
	asked time.Time
	// done is closed when the fields below are set.
	done chan struct{}
	// sample is nil if the kubelet has not answered.
	sample *sample
	// warned says that the log has a warning about it since its last sample.
	warned bool
}

func newReader(ctx context.Context, cfg Config) *reader {
	return &reader{
		ctx: ctx, kubelet: cfg.Kubelet, transport: cfg.Transport,
		log:   logrus.WithField("component", "metrics"),
		slots: make(chan struct{}, atOnce), started: time.Now(), answers: map[string]*answer{},
	}
}

// read returns what the kubelets of nodes say, by the names of the nodes. Nodes that do
// not answer are left out. It fails only if ctx ends.
func (r *reader) read(ctx context.Context, nodes []*corev1.Node) (map[string]*sample, error) {
	answers := map[string]*answer{}
	r.mu.Lock()
	for _, node := range nodes {
		// The control plane has not heard from this node for a while. To ask it would
		// take all patience of the caller.
		if nodeobject.Ready(node).Status == corev1.ConditionUnknown {
			continue
		}
		answers[node.Name] = r.answer(node)
	}
	r.mu.Unlock()
	samples := map[string]*sample{}
	for name, a := range answers {
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the kubelet of node %s: %w", name, context.Cause(ctx))
		}
		if a.sample != nil {
			samples[name] = a.sample
		}
	}
	return samples, nil
}

// answer returns the answer of a node's kubelet, and asks for it if there is no fresh
// one. r.mu must be held.
func (r *reader) answer(node *corev1.Node) *answer {
	before := r.answers[node.Name]
	if before != nil {
		select {
		case <-before.done:
			if time.Since(before.asked) < fresh {
				return before
			}
		default:
			return before
		}
	}
	a := &answer{asked: time.Now(), done: make(chan struct{})}
	r.answers[node.Name] = a
	if r.forgetting == nil {
		r.forgetting = time.AfterFunc(kept, r.forget)
	}
	go func() {
		defer close(a.done)
		a.sample, a.warned = r.ask(node, before)
	}()
	return a
}

// ask asks a node's kubelet. It returns nil if the kubelet does not answer, and whether the
// log has a warning about that. There is one warning, and none about nodes that are not
// ready, or whose tunnels may not be open yet.
func (r *reader) ask(node *corev1.Node, before *answer) (*sample, bool) {
	if before == nil {
		before = &answer{}
	}
	s, err := r.fetch(node, before.sample)
	if err == nil || r.ctx.Err() != nil {
		return s, false
	}
	level, warned := logrus.DebugLevel, before.warned
	if !warned && r.settled() && nodeobject.IsReady(node) {
		level, warned = logrus.WarnLevel, true
	}
	r.log.Logf(level, "metrics.k8s.io has no figures of node %s and its pods: %v", node.Name, err)
	return nil, warned
}

// settled tells whether this process has run for a while.
func (r *reader) settled() bool { return time.Since(r.started) > settling }

// fetch gets the summary of a node's kubelet.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/server/stats/handler.go handler.handleSummary
func (r *reader) fetch(node *corev1.Node, before *sample) (*sample, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	}
	address, err := r.kubelet(node)
	if err != nil {
		return nil, fmt.Errorf("find kubelet: %w", err)
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/stats/summary?only_cpu_and_memory=true", nil)
	if err != nil {
		return nil, fmt.Errorf("ask kubelet: %w", err)
	}
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask kubelet: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return nil, fmt.Errorf("ask kubelet: it answers %s: %q", response.Status, why)
	}
	return readSample(response.Body, before, r.settled())
}

// forget drops the answers that nobody has asked for lately.
func (r *reader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.answers, func(_ string, a *answer) bool { return time.Since(a.asked) >= kept })
	r.forgetting = nil
	if len(r.answers) > 0 {
		r.forgetting = time.AfterFunc(kept, r.forget)
	}
}
