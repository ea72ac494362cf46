// Package policystream has an agent's certificate ask what the NetworkPolicies of a cluster mean for
// that agent's pods, and a user ask the same of a server. It does not check what a node enforces.
package policystream

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const objects = `
apiVersion: v1
kind: Pod
metadata: {name: here, labels: {app: here}}
spec:
  nodeName: server-1
  containers: [{name: main, image: registry.example.com/nothing:1, ports: [{name: web, containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: there, labels: {app: there}}
spec:
  nodeName: agent-1
  containers: [{name: main, image: registry.example.com/nothing:1, ports: [{name: web, containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: later}
spec:
  schedulingGates: [{name: example.com/never}]
  containers: [{name: main, image: registry.example.com/nothing:1}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: there}
spec:
  podSelector: {matchLabels: {app: there}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: here}}}]
    ports: [{port: web}]
`

// TestStream follows the stream of agent-1 while there are no policies, while there is one, and until the
// node is revoked.
func TestStream(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")

	const folder = "/var/lib/kedge/agent/tls/client-kubelet"
	certificate, err := tls.LoadX509KeyPair(agent.Host.Path(folder+".crt"), agent.Host.Path(folder+".key"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		DialContext:       agent.Host.DialContext,
		TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true},
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	updates, ended := make(chan netpolicy.Update), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*cluster.Patience)
	defer cancel()
	go func() {
		ended <- nodestream.Policies().From(&rest.Config{Host: "https://" + c.Server.Host.Address.String() + ":6443", Transport: transport})(ctx,
			func(u netpolicy.Update) error {
				select {
				case updates <- u:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
	}()
	next := func() netpolicy.Update {
		t.Helper()
		select {
		case u := <-updates:
			t.Logf("update %+v", u)
			return u
		case err := <-ended:
			t.Fatalf("the stream ended: %v", err)
		}
		panic("not reached")
	}
	if first := next(); !first.Whole || first.Active {
		t.Errorf("without policies the node is told %+v", first)
	}
	c.Apply(objects)
	// The pods may come before the policy or after it.
	told := map[string]*netpolicy.Pod{}
	for active := false; !active || told["default/there"] == nil || told["default/there"].Ingress == ""; {
		u := next()
		active = u.Active
		if u.Whole {
			clear(told)
		}
		for name, pod := range u.Pods {
			told[name] = pod
		}
	}
	if told["default/here"] != nil || told["default/there"].Egress != "" {
		t.Errorf("agent-1 is told about the pods %v", told)
	}

	explain := func(words ...string) string {
		t.Helper()
		output, err := c.Server.Host.Kedge(c.Context(), append([]string{"netpol", "explain"}, words...)...).CombinedOutput()
		if err != nil {
			t.Logf("explain %v: %v", words, err)
		}
		return string(output)
	}
	for _, test := range []struct{ question, want string }{
		{"there", "TCP web (8080)"},
		{"there -o json", `"policy": "default/there"`},
		{"here", "no policy isolates the pod"},
		{"later --from 203.0.113.1 --port 8080", "no address yet"},
		{"nobody", "there is no pod default/nobody"},
	} {
		if got := explain(strings.Fields(test.question)...); !strings.Contains(got, test.want) {
			t.Errorf("explain %s: no %q in\n%s", test.question, test.want, got)
		}
	}
	c.Kubectl("delete", "networkpolicy", "there")
	for next().Active {
	}
	if got := explain("there"); !strings.Contains(got, "no NetworkPolicy") {
		t.Errorf("without policies explain says %s", got)
	}
	if output, err := c.Server.Host.Kedge(c.Context(), "node", "revoke", "agent-1").CombinedOutput(); err != nil {
		t.Fatalf("revoke: %v\n%s", err, output)
	}
	if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("after the node was revoked, its stream ended with %v", err)
	}
}
