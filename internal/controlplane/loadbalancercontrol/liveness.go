package loadbalancercontrol

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A node counts as gone after it has been silent misses times in a row. So a node that
// dies is known to be gone after at most misses × askInterval + askTimeout, 7.5 s, and an
// agent may restart in less than 4 s.
const (
	askInterval = 2 * time.Second
	askTimeout  = 1500 * time.Millisecond
	misses      = 3
)

// liveness knows which nodes answer. Only one goroutine uses it.
type liveness struct {
	own  string
	call func(ctx context.Context, node string) (answers, known bool)
	// missed counts how often a node was silent in a row.
	missed map[string]int
	// tick receives when it is time to ask. It is nil, and ticker too, as long as nobody
	// needs to know.
	tick   <-chan time.Time
	ticker *time.Ticker
}

func newLiveness(cfg Config) *liveness {
	return &liveness{own: cfg.Node, call: cfg.Answers, missed: map[string]int{}}
}

// answers tells whether a node counts as alive.
func (l *liveness) answers(node string) bool { return l.missed[node] < misses }

// forget makes all nodes count as alive.
func (l *liveness) forget() { clear(l.missed) }

// need makes tick receive from time to time, or no longer. Then all nodes count as alive.
func (l *liveness) need(needed bool) {
	switch {
	case !needed:
		l.pause()
		l.forget()
	case l.ticker == nil:
		l.ticker = time.NewTicker(askInterval)
		l.tick = l.ticker.C
	}
}

// pause ends asking until need. It keeps what is known.
func (l *liveness) pause() {
	if l.ticker != nil {
		l.ticker.Stop()
		l.ticker, l.tick = nil, nil
	}
}

// ask asks all nodes for a sign of life. It tells whether another node counts as alive now,
// or no longer.
func (l *liveness) ask(ctx context.Context, nodes []*corev1.Node) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	silent := make([]bool, len(nodes))
	var asking sync.WaitGroup
	for i, node := range nodes {
		if node.Name != l.own {
			asking.Go(func() {
				answers, known := l.call(ctx, node.Name)
				silent[i] = known && !answers
			})
		}
	}
	asking.Wait()
	missed := map[string]int{}
	for i, node := range nodes {
		if silent[i] {
			missed[node.Name] = l.missed[node.Name] + 1
		}
		if (missed[node.Name] < misses) != l.answers(node.Name) {
			changed = true
		}
	}
	l.missed = missed
	return changed
}
