// Package impersonation lets a thief of an agent's token or certificates try to be another node,
// and to read other nodes' objects.
package impersonation

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const tlsFolder = "/var/lib/kedge/agent/tls/"

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestImpersonation(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	victim := c.RunWeb("victim", "server-1")
	own := c.RunWeb("own", "agent-1")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"key": "value"}}
	if _, err := c.Client.CoreV1().Secrets(cluster.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	volume := makeVolume(c, "server-1")

	t.Run("by token", func(t *testing.T) {
		thief := cluster.NewHost(t, network, "thief")
		for name, why := range map[string]string{
			"agent-1":  "the name agent-1 is taken by another node",
			"server-1": "a node cannot have the name server-1, which is a name of the cluster's API",
		} {
			refused := thief.StartAgent(t, c.Server, "--node-name="+name)
			refused.WaitLog(why)
			refused.Kill9()
		}
	})
	t.Run("by certificate", func(t *testing.T) {
		// Each request is forbidden to the node and to all its components.
		for _, who := range []string{"client-kubelet", "client-kube-proxy", "client-flannel", "client-dns", "client-storage", "client-loadbalancer", "client-gateway"} {
			client := clientOf(t, agent.Host, c.Server, who)
			for _, tries := range []map[string]func(context.Context) error{forbidden(client, victim, own), forbiddenStorage(client, volume)} {
				for what, try := range tries {
					if err := try(t.Context()); !apierrors.IsForbidden(err) {
						t.Errorf("%s tries to %s: got %v, want it forbidden", who, what, err)
					}
				}
			}
		}
	})
	t.Run("renewal as another", func(t *testing.T) {
		for name, want := range map[string]int{"agent-2": http.StatusForbidden, "server-1": http.StatusBadRequest} {
			body, err := json.Marshal(map[string]any{"node": name, "addresses": []string{agent.Host.Address.String()}})
			if err != nil {
				t.Fatal(err)
			}
			if status, answer := post(t, agent.Host, c.Server, "/v1-kedge/renew", body); status != want {
				t.Errorf("as %s: the answer is %d: %s", name, status, answer)
			}
		}
	})
	t.Run("the node itself", func(t *testing.T) {
		client := clientOf(t, agent.Host, c.Server, "client-kubelet")
		if _, err := client.CoreV1().Nodes().Get(t.Context(), "agent-1", metav1.GetOptions{}); err != nil {
			t.Errorf("a node may not read itself: %v", err)
		}
	})
}

// forbidden returns requests that no agent may make.
func forbidden(client kubernetes.Interface, victim, own *corev1.Pod) map[string]func(context.Context) error {
	core := client.CoreV1()
	patch := []byte(`{"metadata":{"labels":{"stolen":"yes"}}}`)
	return map[string]func(context.Context) error{
		"change another node": func(ctx context.Context) error {
			_, err := core.Nodes().Patch(ctx, "server-1", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"tell others how to reach another node": func(ctx context.Context) error {
			_, err := core.Nodes().Patch(ctx, "server-1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		},
		"delete another node": func(ctx context.Context) error {
			return core.Nodes().Delete(ctx, "server-1", metav1.DeleteOptions{})
		},
		"say that a pod of another node failed": func(ctx context.Context) error {
			status := []byte(`{"status":{"phase":"Failed"}}`)
			_, err := core.Pods(victim.Namespace).Patch(ctx, victim.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		},
		"delete a pod of another node": func(ctx context.Context) error {
			return core.Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{})
		},
		"take the lease of another node": func(ctx context.Context) error {
			_, err := client.CoordinationV1().Leases("kube-node-lease").Patch(ctx, "server-1", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"list secrets": func(ctx context.Context) error {
			_, err := core.Secrets("").List(ctx, metav1.ListOptions{})
			return err
		},
		"read a secret of no pod of its": func(ctx context.Context) error {
			_, err := core.Secrets(victim.Namespace).Get(ctx, "secret", metav1.GetOptions{})
			return err
		},
		"exec in a pod of its own": func(ctx context.Context) error {
			return core.RESTClient().Post().Resource("pods").Namespace(own.Namespace).Name(own.Name).SubResource("exec").
				Param("command", "/testserver").Param("stdout", "true").Do(ctx).Error()
		},
		"get a token of a service account of no pod of its": func(ctx context.Context) error {
			request := &authenticationv1.TokenRequest{}
			_, err := core.ServiceAccounts("kube-system").CreateToken(ctx, "node-controller", request, metav1.CreateOptions{})
			return err
		},
		"act as somebody else": func(ctx context.Context) error {
			return core.RESTClient().Get().Resource("nodes").SetHeader("Impersonate-User", "system:admin").
				SetHeader("Impersonate-Group", "system:masters").Do(ctx).Error()
		},
	}
}

// clientOf returns a client with a certificate that was stolen from an agent.
func clientOf(t *testing.T, agent *harness.Host, server *harness.Server, name string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + server.Host.Address.String() + ":6443",
		Dial: agent.DialContext,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile:   agent.Path(tlsFolder + "server-ca.crt"),
			CertFile: agent.Path(tlsFolder + name + ".crt"),
			KeyFile:  agent.Path(tlsFolder + name + ".key"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// post sends a body to the server with the agent's certificate.
func post(t *testing.T, agent *harness.Host, server *harness.Server, path string, body []byte) (status int, answer string) {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(agent.Path(tlsFolder+"client-kubelet.crt"), agent.Path(tlsFolder+"client-kubelet.key"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{
		Timeout: time.Minute,
		Transport: &http.Transport{
			DialContext:     agent.DialContext,
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true},
		},
	}
	defer client.CloseIdleConnections()
	response, err := client.Post("https://"+server.Host.Address.String()+":6443"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(text))
}
