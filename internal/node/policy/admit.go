package policy

import (
	"context"
	"net/netip"
	"time"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

const (
	// closedReason is the reason of the Event about a pod that no server has told of.
	closedReason = "NetworkPolicyUnknown"
	// excessReason is the reason of the Event about a pod whose group is too large.
	excessReason = "NetworkPolicyTooLarge"
	// closedText says what that means, and what to do.
	closedText = "it has no connection except from its own node, until a server tells. If a server is older than this node's kedge, upgrade the servers. " +
		"Otherwise the log of kedge on this node says why no server answers"
)

// Running tells which pods have a network when the kubelet starts. Only then the table of an
// earlier kedge is replaced.
func (p *Policy) Running(ctx context.Context, sandboxes []netpolicy.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range sandboxes {
		p.addSandbox(s)
	}
	p.listed = true
	p.enforceOrRepeat(ctx)
	p.news.Set(struct{}{})
}

// Admit returns when the packets of a pod are filtered. It waits until a server has told about
// the pod, but not for long. Without that, Admit forbids all connections of the pod. If Admit
// fails, the pod must not start.
func (p *Policy) Admit(ctx context.Context, sandbox netpolicy.Sandbox) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addSandbox(sandbox)
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	for !p.decided(sandbox) {
		_, news := p.news.Get()
		late := false
		p.mu.Unlock()
		select {
		case <-news:
		case <-timer.C:
			late = true
		case <-ctx.Done():
		}
		p.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if late {
			p.log.Warnf("No server has told which NetworkPolicies hold for pod %s/%s: "+closedText, sandbox.Namespace, sandbox.Name)
			p.cfg.WarnPod(sandbox.Namespace, sandbox.Name, sandbox.UID, closedReason, "No server has told this node which NetworkPolicies hold for the pod: "+closedText)
			break
		}
	}
	if p.told && p.listed {
		return p.enforceLocked(ctx, nil)
	}
	table, err := p.tableOrNew()
	if err != nil {
		return err
	}
	return table.close(ctx, p.sandboxes[sandbox.ID].Addresses)
}

// decided tells whether it is known what holds for a pod.
func (p *Policy) decided(s netpolicy.Sandbox) bool {
	return p.told && p.listed && (!p.model.active || p.model.knows(s))
}

// Gone tells that the network of a sandbox is removed. Its addresses may belong to another pod
// from now on.
func (p *Policy) Gone(ctx context.Context, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.sandboxes[id]; known {
		delete(p.sandboxes, id)
		p.enforceOrRepeat(ctx)
	}
}

// addSandbox notes a sandbox. An address belongs to the last sandbox that got it.
func (p *Policy) addSandbox(s netpolicy.Sandbox) {
	own := map[netip.Addr]bool{}
	var addresses []netip.Addr
	for _, address := range s.Addresses {
		address = address.Unmap().WithZone("")
		addresses, own[address] = append(addresses, address), true
	}
	s.Addresses = addresses
	for id, other := range p.sandboxes {
		var rest []netip.Addr
		for _, address := range other.Addresses {
			if !own[address] {
				rest = append(rest, address)
			}
		}
		other.Addresses = rest
		p.sandboxes[id] = other
	}
	p.sandboxes[s.ID] = s
}
