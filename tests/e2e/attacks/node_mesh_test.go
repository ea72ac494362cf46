package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestNodeMeshKey announces the key of another node in the mesh. The other nodes would send its packets to the captured node.
func TestNodeMeshKey(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--flannel-backend=mesh")
	a := on(c, c.Join(network, "agent-1").Host)
	read := func(annotation string) string {
		value, err := a.kubectl(stolen("client-flannel"), "", "get", "node", "server-1", `-o=jsonpath={.metadata.annotations.flannel\.alpha\.coreos\.com/`+annotation+`}`)
		if err != nil || value == "" {
			t.Fatalf("server-1 has no %s: %q, %v", annotation, value, err)
		}
		return value
	}
	victim, address := read("backend-data"), read("public-ip")
	if !strings.Contains(victim, "publicKey") {
		t.Fatalf("server-1 announces %s", victim)
	}
	write := func(who string, annotations map[string]string) (string, error) {
		var all []string
		for name, value := range annotations {
			all = append(all, fmt.Sprintf(`"%s%s": %q`, flannelPrefix, name, value))
		}
		return a.patchNode(stolen(who), "agent-1", "status", `{"metadata": {"annotations": {`+strings.Join(all, ", ")+`}}}`)
	}
	for what, annotations := range map[string]map[string]string{
		"take the key of another node":            {"backend-data": victim},
		"take it with the address of that node":   {"backend-data": victim, "public-ip": address},
		"take it among other fields":              {"backend-data": strings.Replace(victim, "{", `{"publicKey": "AAAA", "more": 1, `, 1), "public-ip": address},
		"take it with other letters in its name":  {"backend-data": strings.Replace(victim, "publicKey", "PUBLICKEY", 1), "public-ip": address},
		"take it with a blank line in its digits": {"backend-data": strings.Replace(victim, `"publicKey":"`, `"publicKey":"\n`, 1), "public-ip": address},
	} {
		for _, who := range []string{"client-flannel", "client-kubelet"} {
			output, err := write(who, annotations)
			a.wantForbidden(who+" "+what, output, err)
		}
	}
	// With another backend the key leads to the address of its owner. The node cannot come back to the mesh with it.
	if output, err := write("client-flannel", map[string]string{"backend-type": "wireguard", "backend-data": victim, "public-ip": address}); err != nil {
		t.Fatalf("announce another backend: %s%v", output, err)
	}
	output, err := write("client-flannel", map[string]string{"backend-type": "mesh"})
	a.wantForbidden("take the key in two steps", output, err)
}
