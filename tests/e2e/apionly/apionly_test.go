// Package apionly tests servers without a node that have their state in memory and their API on
// loopback: beside another kedge on the same host, as root of a user namespace only, and without any
// network.
package apionly

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const patience = 2 * time.Minute

// folder is the folder of a server on a host, and kubeconfig a file in it.
const (
	folder     = "/var/lib/api"
	kubeconfig = folder + "/kubeconfig"
)

// nobody is the user and group that has no rights.
const nobody = 65534

// unprivileged makes namespaces as a user without rights, who becomes root of a user namespace.
var unprivileged = []string{"setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups", "--no-new-privs",
	"unshare", "--user", "--map-root-user"}

// script puts the folders of a server in memory, and runs a command.
const script = `
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs ` + folder + `/data
[ ! -d /etc/kedge ] || mount -t tmpfs tmpfs /etc/kedge
exec "$@"`

// newHost returns a host with a folder for a server of user nobody.
func newHost(t *testing.T) *harness.Host {
	t.Helper()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	host.InstallCopy(os.Getenv("KEDGE_BINARY"))
	if err := os.MkdirAll(host.Path(folder+"/data"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{folder, folder + "/data"} {
		if err := os.Chown(host.Path(path), nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

// server returns the command line of a server on a port of loopback that listens on no other port.
func server(port int) []string {
	return []string{harness.InstalledPath, "server", "--disable-agent", "--data-dir=" + folder + "/data", "--write-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprint("--https-listen-port=", port),
		"--kube-controller-manager-arg=secure-port=0", "--kube-scheduler-arg=secure-port=0"}
}

// run starts a command line in namespaces of its own after the script. unshare are the words that
// make them. The returned channel has the error of its end.
func run(t *testing.T, host *harness.Host, unshare, command []string) <-chan error {
	t.Helper()
	words := slices.Concat(unshare, []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script, "sh"}, command)
	log := filepath.Join(host.Scratch("log"), "server.log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(log)
			t.Logf("the log of the server: %v\n%s", err, text)
		}
	})
	cmd := host.Command(context.Background(), words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended
}

// start starts a server in namespaces of its own, and returns a client configuration when its API
// is ready.
func start(t *testing.T, host *harness.Host, port int, unshare ...string) *rest.Config {
	t.Helper()
	ended := run(t, host, unshare, server(port))
	var config *rest.Config
	harness.Eventually(t, patience, "the API to be ready for the administrator", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the server has ended: %v", err)
		default:
		}
		text, err := os.ReadFile(host.Path(kubeconfig))
		if err != nil {
			return err
		}
		if config, err = clientcmd.RESTConfigFromKubeConfig(text); err != nil {
			return err
		}
		config.Dial, config.QPS = host.DialContext, -1
		client := kubernetes.NewForConfigOrDie(config)
		if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
			return err
		}
		// The administrator's rights come a moment later.
		_, err = client.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	return config
}

// works checks that controllers, scheduler, RBAC, and custom resources work.
func works(t *testing.T, config *rest.Config) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(config)
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create Deployment: %v", err)
	}
	harness.Eventually(t, patience, "two pods that no node can run", func() error {
		pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		told := 0
		for _, pod := range pods.Items {
			for _, condition := range pod.Status.Conditions {
				if pod.Status.Phase == corev1.PodPending && condition.Reason == corev1.PodReasonUnschedulable {
					told++
				}
			}
		}
		if told != 2 || len(pods.Items) != 2 {
			return fmt.Errorf("of %d pods the scheduler says of %d that no node fits", len(pods.Items), told)
		}
		return nil
	})
	sets, err := client.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Errorf("got %v, %v, want one ReplicaSet", sets, err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := client.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Errorf("delete Deployment: %v", err)
	}
	harness.Eventually(t, patience, "the pods to be collected with their Deployment", func() error {
		pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return err
	})

	// The user alice may do what a RoleBinding says, and no more.
	of := rest.CopyConfig(config)
	of.Impersonate.UserName = "alice"
	alice := kubernetes.NewForConfigOrDie(of)
	if _, err := alice.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("alice lists ConfigMaps: %v, want a refusal", err)
	}
	_, err = client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("create RoleBinding: %v", err)
	}
	harness.Eventually(t, patience, "alice to list ConfigMaps", func() error {
		_, err := alice.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	if _, err := alice.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("alice lists Secrets: %v, want a refusal", err)
	}

	// kedge's own kinds of custom resources come a moment after the API is ready.
	gateways := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"})
	harness.Eventually(t, patience, "Gateways to be listed", func() error {
		_, err := gateways.List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// written returns the files of a host outside of the server's folder that are newer than a file. The machine's own journal shows through.
func written(t *testing.T, host *harness.Host, than string) string {
	t.Helper()
	output, err := host.Command(t.Context(), "find", "/etc", "/opt", "/run", "/usr/local", "/usr/libexec", "/var/lib", "/var/log",
		"-newer", than, "-not", "-type", "d", "-not", "-path", folder+"/*", "-not", "-path", "/var/log/journal/*").CombinedOutput()
	if err != nil {
		t.Fatalf("find files: %v\n%s", err, output)
	}
	return string(output)
}

// TestRoot checks that a server without a node writes nothing outside of its folders, although it may.
func TestRoot(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	host.WriteFile("/etc/marker", "")
	works(t, start(t, host, 16443, "unshare"))
	if files := written(t, host, "/etc/marker"); files != "" {
		t.Errorf("the server has written\n%s", files)
	}
	if entries, err := os.ReadDir(host.Path(datadir.KubeletRoot)); err != nil || len(entries) > 0 {
		t.Errorf("the server has made %v in the kubelet's folder, %v", entries, err)
	}
}

// TestUserNamespace checks that a server without a node needs no rights on the host.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	works(t, start(t, host, 16443, unprivileged...))
}

// TestBeside checks that a server without a node and a whole kedge on the same network do not
// disturb each other.
func TestBeside(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	whole := host.StartServer(t)
	whole.WaitReady()
	works(t, start(t, host, 16443, "unshare"))
	whole.WaitReady()
	nodes, err := whole.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Errorf("the whole kedge has the nodes %v, %v, want one", nodes, err)
	}
}

// TestNoNetwork checks that a server without a node needs no network.
func TestNoNetwork(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	const client = `
ip link set lo up
"$@" &
kubectl() { ` + harness.InstalledPath + ` kubectl --kubeconfig=` + kubeconfig + ` "$@"; }
until kubectl get --raw=/readyz; do sleep 0.3; done
until kubectl create deployment web --image=example.com/web --replicas=2; do sleep 0.3; done
until [ "$(kubectl get pods --no-headers | grep -c Pending)" = 2 ]; do sleep 0.3; done
kubectl get endpointslices kubernetes && exit 1
kubectl get service kubernetes >` + folder + `/done`
	ended := run(t, host, append(slices.Clone(unprivileged), "--net"), append([]string{"sh", "-euc", client, "sh"}, server(16443)...))
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("the server, or a command: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("no pods after %s", patience)
	}
	if text, err := os.ReadFile(host.Path(folder + "/done")); err != nil || !strings.Contains(string(text), "ClusterIP") {
		t.Errorf("the Service kubernetes is %q, %v", text, err)
	}
}
