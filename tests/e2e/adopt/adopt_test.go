// Package adopt takes over clusters that a real k3s has written. KEDGE_K3S_FOLDERS is a folder with
// NAME.tar.zst, which has k3s's files below / of its host, and NAME.objects, which lists the objects
// that its API had.
package adopt

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/crypto/scrypt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	variable = "KEDGE_K3S_FOLDERS"
	// node is the name of the only node of the clusters.
	node = "k3s-one"
	// revisions is more than the revisions of k3s's datastores.
	revisions = 1000
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestAdopt(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	folder := os.Getenv(variable)
	if folder == "" {
		t.Skip(variable + " is not set: k3s's folders are not part of the sources")
	}
	archives, err := filepath.Glob(filepath.Join(folder, "*.tar.zst"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("find archives in %s: %v", folder, err)
	}
	containerd := pulled(t)
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.zst")
		t.Run(name, func(t *testing.T) { testAdopt(t, archive, filepath.Join(folder, name+".objects"), containerd) })
	}
	t.Run("node password", func(t *testing.T) { testNodePassword(t, archives[len(archives)-1]) })
}

// pulled returns a root folder of containerd that has the image of the pods. k3s's folders have none,
// because k3s never ran a pod there.
func pulled(t *testing.T) string {
	t.Helper()
	host := cluster.NewHost(t, harness.NewNetwork(t), "puller")
	server := host.StartServer(t)
	server.WaitReady()
	server.Terminate()
	folder := t.TempDir()
	for _, part := range []string{"io.containerd.metadata.v1.bolt", "io.containerd.content.v1.content"} {
		copyAll(t, host.Path("/var/lib/kedge/agent/containerd/"+part), filepath.Join(folder, part))
	}
	return folder
}

func copyAll(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("cp", "--archive", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, output)
	}
}

func unpack(t *testing.T, archive string, host *harness.Host) {
	t.Helper()
	if output, err := exec.Command("tar", "--zstd", "-xf", archive, "-C", host.Path("/")).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", archive, err, output)
	}
}

func testAdopt(t *testing.T, archive, list, containerd string) {
	host := harness.NewNetwork(t).NewHost(t, node)
	unpack(t, archive, host)
	copyAll(t, containerd, host.Path("/var/lib/rancher/k3s/agent/containerd"))
	before := hash(t, host)

	refusesWhileInUse(t, host)
	killAtTenPoints(t, host, before)
	output, err := host.Kedge(t.Context(), "adopt", "k3s").Output()
	if err != nil {
		t.Fatal(err)
	}
	said := string(output)
	t.Log(said)
	for _, want := range []string{"To go back to k3s: stop kedge and its pods with `kedge killall`, and start k3s.", "/var/lib/rancher/k3s/storage", "agent/images/k3s-images.tar"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if again, err := host.Kedge(t.Context(), "adopt", "k3s").CombinedOutput(); err == nil || !strings.Contains(string(again), "move that folder away") {
		t.Errorf("a second adoption: %v: %s", err, again)
	}
	if hash(t, host) != before {
		t.Error("k3s's files have changed")
	}

	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	wantObjects(c, list, said)
	wantContents(c)
	wantCredentials(c)
	wantFile(c)
	deleteNode(c)
	if now := hash(t, host); now != before {
		t.Error("k3s's files have changed while kedge ran")
	}
}

// killAtTenPoints kills adoptions as soon as they begin each of their first ten steps.
func killAtTenPoints(t *testing.T, host *harness.Host, before string) {
	t.Helper()
	for point := 1; point <= 10; point++ {
		cmd := host.Kedge(context.Background(), "adopt", "k3s")
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = writer
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		writer.Close()
		lines := bufio.NewScanner(reader)
		seen := 0
		for seen < point && lines.Scan() {
			seen++
		}
		_ = cmd.Process.Kill()
		err = cmd.Wait()
		reader.Close()
		t.Logf("killed at %q: %v", lines.Text(), err)
		if seen < point {
			t.Fatalf("it told only %d steps", seen)
		}
		if hash(t, host) != before {
			t.Fatalf("k3s's files have changed")
		}
		if _, err := os.Stat(host.Path("/var/lib/kedge/server")); err == nil {
			t.Fatalf("there is a server's folder, though the last step has not begun")
		}
	}
}

// hash returns a hash of the names, modes, times and contents of k3s's files.
func hash(t *testing.T, host *harness.Host) string {
	t.Helper()
	sum := sha256.New()
	for _, root := range []string{"/var/lib/rancher", "/etc/rancher"} {
		err := filepath.WalkDir(host.Path(root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			fmt.Fprintln(sum, entry.Name(), info.Mode(), info.ModTime())
			if !entry.Type().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			_, _ = sum.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// wantObjects fails unless the API has each object of the list, or the adoption has named it.
func wantObjects(c *cluster.Cluster, list, said string) {
	c.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		c.Fatal(err)
	}
	want := map[string]int{}
	kinds := map[string]bool{}
	for _, object := range strings.Fields(string(text)) {
		want[object]++
		kind, _, _ := strings.Cut(object, "/")
		kinds[kind] = true
	}
	for line := range strings.Lines(said) {
		if fields := strings.Fields(line); len(fields) > 2 {
			// KIND NAMESPACE/NAME REASON
			want[fields[0]+"/"+fields[1][strings.LastIndex(fields[1], "/")+1:]]--
		}
	}
	missing := 0
	for kind := range kinds {
		there := strings.Fields(c.Kubectl("get", kind, "--all-namespaces", "-o", "name"))
		for object, count := range want {
			if of, _, _ := strings.Cut(object, "/"); of != kind || count <= 0 {
				continue
			}
			found := 0
			for _, name := range there {
				if name == object {
					found++
				}
			}
			if found < count {
				missing++
				c.Errorf("%s: %d in the API, %d in the list and not named", object, found, count)
			}
		}
	}
	c.Logf("%d objects in the list, %d missing", len(want), missing)
}

// wantContents fails unless Secrets can be read, and objects have their resource versions.
func wantContents(c *cluster.Cluster) {
	c.Helper()
	secret, err := c.Client.CoreV1().Secrets("apps").Get(c.Context(), "password", metav1.GetOptions{})
	if err != nil || string(secret.Data["user"]) != "admin" || string(secret.Data["password"]) != "correct-horse" {
		c.Errorf("the Secret is %v, %v", secret, err)
	}
	secrets, err := c.Client.CoreV1().Secrets("").List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	c.Logf("%d Secrets can be read", len(secrets.Items))
	maps, err := c.Client.CoreV1().ConfigMaps("apps").List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var old []int
	for _, m := range maps.Items {
		if revision, _ := strconv.Atoi(m.ResourceVersion); revision < revisions && m.Name != "kube-root-ca.crt" {
			old = append(old, revision)
		}
	}
	slices.Sort(old)
	c.Logf("revisions of ConfigMaps: %v", old)
	if len(old) < 41 {
		c.Errorf("%d ConfigMaps have their resource versions, want c1 to c40 and settings", len(old))
	}
	if revision, _ := strconv.Atoi(secret.ResourceVersion); revision >= revisions {
		c.Errorf("the Secret has the resource version %d", revision)
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("apps").Get(c.Context(), "data", metav1.GetOptions{})
	if err != nil || claim.Status.Phase != corev1.ClaimBound {
		c.Errorf("the claim is %v, %v", claim, err)
	}
	status := c.Server.Host.Kedge(c.Context(), "secrets-encrypt", "status")
	text, err := status.CombinedOutput()
	c.Logf("%s%v", text, err)
}

// wantFile fails unless a pod with the claim sees the file of the volume.
func wantFile(c *cluster.Cluster) {
	c.Helper()
	c.Eventually("a pod with the claim to be made", func() error {
		_, err := c.TryKubectl(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: apps}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    args: [sleep]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`, image.TestserverName), "apply", "--namespace=apps", "-f", "-")
		return err
	})
	c.Eventually("the pod to see the file", func() error {
		id, err := c.Server.Host.Kedge(c.Context(), "crictl", "ps", "--quiet", "--label", "io.kubernetes.pod.name=reader").Output()
		if err != nil || len(id) == 0 {
			return fmt.Errorf("it has no container: %v", err)
		}
		pid, err := c.Server.Host.Kedge(c.Context(), "crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", strings.TrimSpace(string(id))).Output()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(c.Server.Host.Path(fmt.Sprintf("/proc/%s/root/data/file", strings.TrimSpace(string(pid)))))
		if err == nil && strings.TrimSpace(string(text)) != "kept" {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
	c.Kubectl("delete", "pod", "reader", "--namespace=apps")
}

// deleteNode fails if an object cannot be deleted because it waits for k3s.
func deleteNode(c *cluster.Cluster) {
	c.Helper()
	object, err := c.Client.CoreV1().Nodes().Get(c.Context(), node, metav1.GetOptions{})
	if err != nil || len(object.Finalizers) > 0 {
		c.Errorf("the node has finalizers %v, %v", object.Finalizers, err)
	}
	c.Kubectl("delete", "helmchart", "hello", "--namespace=kube-system", "--timeout=60s")
}

// testNodePassword makes a node of k3s an agent of kedge. Another machine does not get its name.
func testNodePassword(t *testing.T, archive string) {
	const file = "/etc/rancher/node/password"
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	unpack(t, archive, host)
	password, err := os.ReadFile(host.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(host.Path(file)); err != nil {
		t.Fatal(err)
	}
	output, err := host.Kedge(t.Context(), "adopt", "k3s", "--cluster-init").Output()
	if err != nil || !strings.Contains(string(output), "This host will be the node server-1, and the cluster has only [k3s-one]") {
		t.Fatalf("%v: %s", err, output)
	}
	if _, err := os.Stat(host.Path("/var/lib/kedge/server/db/etcd/member")); err != nil {
		t.Errorf("with cluster-init: %v", err)
	}
	server := host.StartServer(t, "--cluster-init")
	server.WaitReady()
	// The hash in the folder is not that of the password.
	c := cluster.Of(t, server)
	c.Kubectl("delete", "secret", "k3s-one.node-password.k3s", "--namespace=kube-system")
	c.Kubectl("create", "secret", "generic", "k3s-one.node-password.k3s", "--namespace=kube-system", "--from-literal=hash="+k3sHash(t, strings.TrimSpace(string(password))))

	other := cluster.NewHost(t, network, node)
	agent := other.StartAgent(t, server)
	agent.WaitLog("the name k3s-one is taken by another node")
	agent.Kill9()
	if err := os.Remove(other.Path("/etc/kedge/node/password")); err != nil {
		t.Fatal(err)
	}
	other.WriteFile(file, string(password))
	agent.Start()
	agent.WaitReady()
	wantContents(c)
}

// k3sHash returns k3s's hash of a password.
func k3sHash(t *testing.T, password string) string {
	t.Helper()
	salt := []byte("saltsalt")
	key, err := scrypt.Key([]byte(password), salt, 1<<15, 8, 1, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("$1:%x:15:8:1:%s", salt, base64.RawStdEncoding.EncodeToString(key))
}

// refusesWhileInUse fails unless an adoption is refused while a process uses k3s's datastore, or keeps a
// container of k3s.
func refusesWhileInUse(t *testing.T, host *harness.Host) {
	t.Helper()
	const open = "exec 9<$(ls /var/lib/rancher/k3s/server/db/state.db /var/lib/rancher/k3s/server/db/etcd/member/snap/db 2>/dev/null); "
	for script, want := range map[string]string{
		open: "uses k3s's datastore",
		"":   "pods of k3s still run on this host",
	} {
		arguments := []string{"-c", script + "echo; read line", "sh"}
		if script != open {
			arguments = append(arguments, "/run/k3s/containerd/containerd.sock")
		}
		cmd := host.Command(context.Background(), "sh", arguments...)
		input, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer input.Close()
		output, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = output.Read(make([]byte, 1)) // now it is in place
		said, err := host.Kedge(t.Context(), "adopt", "k3s").CombinedOutput()
		if err == nil || !strings.Contains(string(said), want) || !strings.Contains(string(said), "run k3s-killall.sh") {
			t.Errorf("%v: %s, want %q", err, said, want)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if _, err := os.Stat(host.Path("/var/lib/kedge/adopting")); err == nil {
		t.Error("it has begun all the same")
	}
}

// wantCredentials fails unless k3s's kubeconfig, a token that it made for a ServiceAccount, and the
// secret of its join token are valid.
func wantCredentials(c *cluster.Cluster) {
	c.Helper()
	host := c.Server.Host
	nodes := c.Kubectl("--kubeconfig=/etc/rancher/k3s/k3s.yaml", "--server=https://127.0.0.1:6443", "get", "nodes", "-o", "name")
	if nodes != "node/"+node {
		c.Errorf("with k3s's kubeconfig: %q", nodes)
	}
	secrets, err := c.Client.CoreV1().Secrets("apps").List(c.Context(), metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	if err != nil || len(secrets.Items) == 0 {
		c.Fatalf("tokens of ServiceAccounts: %v, %v", secrets, err)
	}
	who, err := userOf(c, string(secrets.Items[0].Data[corev1.ServiceAccountTokenKey]))
	if err != nil || who != "system:serviceaccount:apps:default" {
		c.Errorf("the token of the ServiceAccount is that of %q, %v", who, err)
	}
	old, err := os.ReadFile(host.Path("/var/lib/rancher/k3s/server/token"))
	if err != nil {
		c.Fatal(err)
	}
	_, want, _ := strings.Cut(strings.TrimSpace(string(old)), "::")
	if _, got, _ := strings.Cut(c.Server.Token(), "::"); got != want {
		c.Errorf("the join token ends in %q, want %q", got, want)
	}
}

// userOf returns the name of the user whom the API recognizes by a token.
func userOf(c *cluster.Cluster, token string) (string, error) {
	c.Helper()
	config := c.Server.RESTConfig()
	config.TLSClientConfig.CertData, config.TLSClientConfig.KeyData = nil, nil
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(c.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return who.Status.UserInfo.Username, nil
}
