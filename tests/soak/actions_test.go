package soak

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// action is something that users or fate do. It may leave the cluster in any state from which the cluster must recover by itself.
type action struct {
	name string
	do   func(w *world, random *rand.Rand)
}

var actions = []action{
	// What users do.
	{"a rollout", func(w *world, random *rand.Rand) { w.try("rollout", "restart", "deployment/"+anApp(random)) }},
	{"a Deployment is scaled to one pod and back", func(w *world, random *rand.Rand) {
		name := "deployment/" + anApp(random)
		w.try("scale", name, "--replicas=1")
		time.Sleep(between(random, time.Second, 10*time.Second))
		w.insist("scale", name, fmt.Sprint("--replicas=", replicas))
	}},
	{"pods are deleted", func(w *world, random *rand.Rand) {
		w.try("delete", "pods", "--selector=app="+anApp(random), "--wait=false")
	}},
	{"a node is drained", func(w *world, random *rand.Rand) {
		name := w.any(random, func(*node) bool { return true }).Name
		w.try("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
		w.insist("uncordon", name)
	}},
	{"ConfigMaps come and go", func(w *world, random *rand.Rand) {
		for n := range 30 {
			w.try("create", "configmap", fmt.Sprint("churn-", n), fmt.Sprint("--from-literal=value=", random.Int()))
		}
		for n := range 30 {
			w.insist("delete", "configmap", fmt.Sprint("churn-", n), "--ignore-not-found")
		}
	}},
	{"a namespace comes and goes", func(w *world, _ *rand.Rand) {
		w.try("create", "namespace", "passing")
		w.try("--namespace=passing", "create", "deployment", "passing", "--image="+image.TestserverName, "--replicas=3", "--", "/testserver", "sleep")
		w.insist("delete", "namespace", "passing", "--ignore-not-found", "--timeout=120s")
	}},
	{"a burst of work", func(w *world, random *rand.Rand) {
		w.try("create", "job", "burst", "--image="+image.BusyboxName, "--", "sleep", "1")
		w.try("patch", "job", "burst", "-p", `{"spec":{"parallelism":8}}`)
		time.Sleep(between(random, time.Second, 10*time.Second))
		w.insist("delete", "job", "burst", "--ignore-not-found", "--cascade=foreground")
	}},
	{"the route is written again", func(w *world, _ *rand.Rand) {
		w.try("delete", "httproute", "front")
		w.applyLater(gateway)
	}},
	{"a snapshot", func(w *world, random *rand.Rand) {
		server := w.any(random, func(n *node) bool { return n.server })
		if output, err := server.Kedge(w.Context(), "snapshot", "save").CombinedOutput(); err != nil {
			w.Logf("a snapshot on %s: %v: %s", server.Name, err, output)
		}
	}},
	// What administrators do.
	{"kedge is restarted", func(w *world, random *rand.Rand) {
		n := w.any(random, restarts)
		n.process.Terminate()
		n.process.Start()
	}},
	{"certificates are renewed", func(w *world, random *rand.Rand) {
		n := w.any(random, func(*node) bool { return true })
		if output, err := n.Kedge(w.Context(), "certificate", "rotate").CombinedOutput(); err != nil {
			w.Errorf("new certificates on %s: %v: %s", n.Name, err, output)
		}
	}},
	// What fate does.
	{"kill -9 of kedge", func(w *world, random *rand.Rand) {
		n := w.any(random, restarts)
		n.process.Kill9()
		time.Sleep(between(random, 0, 20*time.Second))
		n.process.Start()
	}},
	{"kill -9 of two servers", func(w *world, random *rand.Rand) {
		var killed []*node
		for _, n := range w.nodes {
			if n.server && restarts(n) {
				n.process.Kill9()
				killed = append(killed, n)
			}
		}
		time.Sleep(between(random, 0, 20*time.Second))
		for _, n := range killed {
			n.process.Start()
		}
	}},
	{"a node loses its power", func(w *world, random *rand.Rand) {
		n := w.any(random, restarts)
		n.process.Kill9()
		n.Reboot()
		time.Sleep(between(random, 0, 20*time.Second))
		n.process.Start()
	}},
	{"kedge is paused", func(w *world, random *rand.Rand) {
		n := w.any(random, restarts)
		_ = n.process.Process().Signal(syscall.SIGSTOP)
		time.Sleep(between(random, time.Second, 40*time.Second))
		_ = n.process.Process().Signal(syscall.SIGCONT)
	}},
	{"a link is cut", onLink(func(n *node) { n.CutLink() })},
	{"a node is not heard", onLink(func(n *node) { n.CutLinkFrom() })},
	{"a node hears nothing", onLink(func(n *node) { n.CutLinkTo() })},
	{"a link loses packets", onLink(func(n *node) { n.LosePackets(20) })},
}

// onLink makes a fault of a node's link for a while.
func onLink(fault func(*node)) func(*world, *rand.Rand) {
	return func(w *world, random *rand.Rand) {
		n := w.any(random, func(n *node) bool { return n != w.nodes[0] }) // this test asks the first server
		fault(n)
		time.Sleep(between(random, time.Second, 60*time.Second))
		n.HealLink()
		n.LosePackets(0)
	}
}

func restarts(n *node) bool { return !n.steady }

// any draws one of the nodes that fit.
func (w *world) any(random *rand.Rand, fits func(*node) bool) *node {
	var all []*node
	for _, n := range w.nodes {
		if fits(n) {
			all = append(all, n)
		}
	}
	return all[random.IntN(len(all))]
}

func anApp(random *rand.Rand) string { return fmt.Sprint("web-", random.IntN(apps)) }

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// try runs kubectl. It may fail, because something else may have just happened.
func (w *world) try(args ...string) {
	if _, err := w.TryKubectl("", args...); err != nil {
		w.Logf("kubectl %v: %v", args, err)
	}
}

// insist runs kubectl until it succeeds.
func (w *world) insist(args ...string) {
	w.Helper()
	w.Eventually(fmt.Sprint("kubectl ", args, " to succeed"), func() error {
		_, err := w.TryKubectl("", args...)
		return err
	})
}

// applyLater applies objects as soon as that succeeds.
func (w *world) applyLater(text string) {
	w.Helper()
	w.Eventually("objects to be applied", func() error {
		_, err := w.TryKubectl(text, "apply", "-f", "-")
		return err
	})
}
