package damaged

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestDamagedObject changes a byte in one stored object of each of three kinds. The server must start and serve everything
// else, and `kedge status` must name the object and the command that removes it. Secrets are
// encrypted, so that a byte of theirs is found by another check than one of a ConfigMap.
func TestDamagedObject(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "sqlite3")
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	server := host.StartServer(t, "--disable-agent", "--secrets-encryption")
	server.WaitLog(lastOfStart)
	s := &scenario{Cluster: cluster.Of(t, server)}
	s.Kubectl("create", "configmap", "whole", "--from-literal=text=whole")
	s.Kubectl("create", "configmap", "flipped", "--from-literal=text=flipped")
	s.Kubectl("create", "secret", "generic", "flipped", "--from-literal=text=flipped")
	s.Apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: flipped}, spec: {podSelector: {}}}")
	server.Terminate()
	objects := map[string]string{
		"configmaps default/flipped":                        "/registry/configmaps/default/flipped",
		"secrets default/flipped":                           "/registry/secrets/default/flipped",
		"networkpolicies.networking.k8s.io default/flipped": "/registry/networkpolicies/default/flipped",
	}
	for _, key := range objects {
		s.flip(key)
	}
	server.Start()
	var removing []string
	s.Eventually("status to name the objects", func() error {
		output, _ := host.Kedge(s.Context(), "status").CombinedOutput()
		removing = nil
		for name := range objects {
			found := regexp.MustCompile("(?s)wrong: " + regexp.QuoteMeta(name) + " is damaged in the datastore.*?kubectl (delete --raw \"[^\"]*\")").FindSubmatch(output)
			if found == nil {
				return fmt.Errorf("no %s in %s", name, output)
			}
			removing = append(removing, string(found[1]))
		}
		return nil
	})
	if list := s.Kubectl("get", "configmaps", "--output=name"); !strings.Contains(list, "configmap/whole") || strings.Contains(list, "flipped") {
		t.Errorf("the list is %s", list)
	}
	if _, err := s.Client.CoreV1().Secrets(cluster.Namespace).List(s.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list of Secrets: %v", err)
	}
	if output, err := s.TryKubectl("", "get", "networkpolicies"); err == nil {
		t.Errorf("a list without a NetworkPolicy that exists: %s", output)
	}
	for _, args := range [][]string{
		{"get", "configmap", "flipped"},
		{"patch", "configmap", "flipped", "--patch={data: {text: new}}"},
		{"delete", "configmap", "flipped"},
		{"create", "configmap", "flipped"},
	} {
		if output, err := s.TryKubectl("", args...); err == nil {
			t.Errorf("kubectl %v: %s", args, output)
		}
	}
	// The name stays taken, so nothing that belongs to the object is removed as an orphan.
	if _, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(s.Context(), "flipped", metav1.GetOptions{}); err == nil || strings.Contains(err.Error(), "not found") {
		t.Errorf("get of the damaged object: %v", err)
	}
	for _, command := range removing {
		verb, path, _ := strings.Cut(command, " --raw ")
		s.Kubectl(verb, "--raw", strings.Trim(path, `"`))
	}
	server.WaitLog(lastOfStart)
	s.Eventually("status to be well", func() error {
		if output, err := host.Kedge(s.Context(), "status").CombinedOutput(); err != nil || strings.Contains(string(output), "damaged") {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	s.Kubectl("create", "configmap", "flipped", "--from-literal=text=new")
	if got := s.Kubectl("get", "networkpolicies", "--output=name"); got != "" {
		t.Errorf("there is %s", got)
	}
	server.Terminate()
}

// flip changes a byte near the end of the last value of a key.
func (s *scenario) flip(key string) {
	s.Helper()
	sql := fmt.Sprintf("UPDATE kine SET value = CAST(substr(value, 1, length(value) - 12) || x'ff' || substr(value, length(value) - 10) AS BLOB) WHERE id = (SELECT max(id) FROM kine WHERE name = '%s'); SELECT changes();", key)
	output, err := s.Server.Host.Command(s.Context(), "sqlite3", database, sql).CombinedOutput()
	if err != nil || strings.TrimSpace(string(output)) != "1" {
		s.Fatalf("change a byte of %s: %v: %s", key, err, output)
	}
}
