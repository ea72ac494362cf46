package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/scarce"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

const (
	// etcdDir is the folder of the baseline's database, as in kubeadm.yaml.
	etcdDir = stateDir + "/etcd"
	// agentSamples is how often an idle agent is measured.
	agentSamples = 10
	oomInterval  = 200 * time.Millisecond
	// hardshipTime is how long a system works under hardship. tests/e2e runs the same
	// tests for longer.
	hardshipTime = time.Minute
)

// nodePrograms are the programs of the baseline that a node without the control plane runs.
var nodePrograms = []string{"kubelet", "containerd", "kube-proxy", "flanneld", "coredns"}

// measureAgent joins an agent to a server and measures the agent's host.
func measureAgent(t *testing.T, r *report) {
	network := harness.NewNetwork(t)
	server := network.NewHost(t, "server").StartServer(t)
	server.WaitReady()
	h := network.NewHost(t, "agent")
	h.StartAgent(t, server).WaitReady()
	time.Sleep(r.Options.Settle)
	var pss, anonymous []float64
	for range agentSamples {
		time.Sleep(min(sampleInterval, r.Options.Idle/agentSamples))
		s, err := takeSnapshot(h)
		if err != nil {
			t.Fatal(err)
		}
		pss = append(pss, s.PSS())
		anonymous = append(anonymous, s.Anonymous())
	}
	r.set(agentPSS, kedgeName, median(pss))
	r.set(agentAnonymous, kedgeName, median(anonymous))
}

// addAgents adds the share of a node's programs in the baseline's runs. A host without a control
// plane would run the same programs.
func (r *report) addAgents() {
	var pss, anonymous []float64
	for _, run := range r.Runs {
		if run.System != baselineName {
			continue
		}
		var sum usage
		for _, name := range nodePrograms {
			sum.add(run.Programs[name])
		}
		pss, anonymous = append(pss, sum.PSS), append(anonymous, sum.Anonymous)
	}
	if len(pss) > 0 {
		r.set(agentPSS, baselineName, median(pss))
		r.set(agentAnonymous, baselineName, median(anonymous))
	}
}

// measureSmall runs a system with little memory.
func measureSmall(t *testing.T, r *report, system string) {
	if system == kedgeName {
		peak, err := scarce.Small(t.Context(), quiet{t}, harness.NewNetwork(t), hardshipTime)
		r.outcome(smallMemory, system, err)
		t.Logf("at most %.0f MiB: %v", peak/mebibyte, err)
		return
	}
	i := newInstallation(t, r, system, scarce.MemoryLimit)
	go func() {
		for i.ctx.Err() == nil {
			if kills, err := i.memory.OOMKills(); err == nil && kills > 0 {
				i.fail(errors.New("the kernel killed a process for lack of memory"))
			}
			time.Sleep(oomInterval)
		}
	}()
	r.outcome(smallMemory, system, i.endure(t))
}

// measureSlowDisk runs a system with its database on a disk like an SD card.
func measureSlowDisk(t *testing.T, r *report, system string) {
	if system == kedgeName {
		stats, err := scarce.SlowDisk(t.Context(), quiet{t}, harness.NewNetwork(t), hardshipTime)
		r.outcome(slowDisk, system, err)
		t.Logf("%d syncs, %d KiB: %v", stats.Syncs, stats.Bytes>>10, err)
		return
	}
	i := newInstallation(t, r, system, 0)
	slowfs.Mount(t, i.host, etcdDir, slowfs.SDCard)
	r.outcome(slowDisk, system, i.endure(t))
}

// endure starts the baseline and makes it work under hardship. If a process was killed, it returns
// that, and not the errors that follow.
func (i *installation) endure(t *testing.T) error {
	err := i.work(t)
	if cause := context.Cause(i.ctx); cause != nil {
		return cause
	}
	return err
}

func (i *installation) work(t *testing.T) error {
	if _, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t)); err != nil {
		return err
	}
	client, err := connect(i.ctx, i.host, i.kubeconfig)
	if err != nil {
		return err
	}
	if err := removeFirstPod(i.ctx, client); err != nil {
		return err
	}
	// Restarts during the start do not count.
	before := i.baseline.restarts()
	system := scarce.System{Client: client, Restarts: func() int { return i.baseline.restarts() - before }}
	return system.Work(i.ctx, scarce.SmallPods, hardshipTime)
}

// quiet is a test that does not fail when kedge does, because that is a result. It then shows no log.
type quiet struct{ *testing.T }

// Failed is always false.
func (q quiet) Failed() bool { return false }

// outcome records whether a system endured a hardship. err is nil, or the reason why not.
func (r *report) outcome(name, system string, err error) {
	if r.Outcomes[name] == nil {
		r.Outcomes[name] = map[string]string{}
	}
	r.Outcomes[name][system] = stood
	if err != nil {
		r.Outcomes[name][system] = fmt.Sprintf("%s: %v", failed, err)
	}
}
