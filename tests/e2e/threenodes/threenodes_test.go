// Package threenodes has pods on a server and two agents reach each other by address, by Service
// and by name.
package threenodes

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestThreeNodes(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	hosts := []*harness.Host{c.Server.Host, c.Join(network, "agent-1").Host, c.Join(network, "agent-2").Host}

	var pods []*corev1.Pod
	var names []string
	for i, host := range hosts {
		pods = append(pods, c.RunWeb(fmt.Sprint("web-", i), host.Name))
		names = append(names, pods[i].Name)
	}
	nodePort := c.ServeWeb()

	for _, from := range pods {
		for _, to := range pods {
			c.In(from.Name, from.Name+" to reach "+to.Name+" with its own address", func(output string) bool {
				return strings.HasPrefix(output, "hostname="+to.Name+"\nclient="+from.Status.PodIP+"\n")
			}, "/testserver", "fetch", "http://"+to.Status.PodIP+":"+cluster.WebPort+"/")
		}
		c.Answers(from.Name, "http://web.default.svc.cluster.local/", names...)
		for _, host := range hosts {
			c.Answers(from.Name, "http://"+host.Address.String()+":"+nodePort+"/", names...)
		}
	}
}
