package adopt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// addon returns the annotations that k3s puts on the objects of one of its manifests.
func addon(name string) string {
	return fmt.Sprintf(`annotations: {objectset.rio.cattle.io/owner-gvk: "k3s.cattle.io/v1, Kind=Addon", objectset.rio.cattle.io/owner-name: %s, objectset.rio.cattle.io/owner-namespace: kube-system}`, name)
}

// parts are objects like those with which a k3s of this version of Kubernetes runs DNS, metrics and a
// load balancer.
func parts() string {
	const containers = "containers: [{name: main, image: registry.invalid/k3s:1}]"
	return strings.Join([]string{`
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
`, `
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
data: {Corefile: ".:53 { }"}
`, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec: {serviceAccountName: coredns, ` + containers + `}
`, `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, ` + addon("coredns") + `}
spec:
  clusterIP: 10.43.0.10
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, `
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system, ` + addon("metrics-server-service") + `}
spec: {selector: {k8s-app: metrics-server}, ports: [{port: 443}]}
`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io, ` + addon("metrics-apiservice") + `}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: svclb-web-12345678, namespace: kube-system, labels: {svccontroller.k3s.cattle.io/svcname: web}}
spec:
  selector: {matchLabels: {app: svclb-web-12345678}}
  template:
    metadata: {labels: {app: svclb-web-12345678}}
    spec: {` + containers + `}
`, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: etcdsnapshotfiles.k3s.cattle.io}
spec:
  group: k3s.cattle.io
  scope: Cluster
  names: {kind: ETCDSnapshotFile, plural: etcdsnapshotfiles, singular: etcdsnapshotfile}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`}, "---")
}

// volume is a claim with a volume as newer versions of k3s make them: of the type local, in a folder that
// is named after the claim.
const volume = `
apiVersion: v1
kind: PersistentVolume
metadata:
  name: pvc-0b7f2a4e-0000-4000-8000-000000000001
  annotations: {local.path.provisioner/selected-node: k3s-one, pv.kubernetes.io/provisioned-by: rancher.io/local-path}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, name: data, namespace: apps}
  local: {path: ` + volumeFolder + `}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [k3s-one]}]}]}}
  persistentVolumeReclaimPolicy: Delete
  storageClassName: local-path
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: apps}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  storageClassName: local-path
  volumeName: pvc-0b7f2a4e-0000-4000-8000-000000000001
`

// proof is the Secret with the hash of a node's password, which newer versions of k3s give a type.
const proof = `
apiVersion: v1
kind: Secret
metadata: {name: k3s-one.node-password.k3s, namespace: kube-system}
type: k3s.cattle.io/node-password
immutable: true
stringData: {hash: "$1:00:15:8:1:00"}
`

const (
	// volumeFolder is not in k3s's data directory, because of default-local-storage-path.
	volumeFolder = "/opt/volumes/pvc-0b7f2a4e-0000-4000-8000-000000000001_apps_data"
	// newerData is k3s's data directory.
	newerData = "/opt/k3s"
)

// chain replaces the certificate of an authority by one that a root has signed, with the certificate of
// the root behind it, as k3s's documents do it for authorities of users.
func chain(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of the company"}, NotBefore: certificate.NotBefore, NotAfter: certificate.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte("root"),
	}
	signed, err := x509.CreateCertificate(rand.Reader, certificate, root, certificate.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	self, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: self})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// replaceKey gives service accounts a new key, and keeps the one that they had.
func replaceKey(t *testing.T, folder string) {
	t.Helper()
	old, err := os.ReadFile(filepath.Join(folder, "service.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	current := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	for name, text := range map[string][]byte{"service.key": append(slices.Clone(current), old...), "service.current.key": current} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewer adopts what a k3s of this version of Kubernetes would have written, as far as its
// documents and its sources say: its DNS, its metrics, its load balancer, Secrets encrypted with secretbox,
// what it knows of snapshots, volumes of the type local, authorities of a root, a key of service accounts
// that was replaced, and folders that its user chose. A kedge without these parts writes it: the files
// have the same names and forms.
func TestNewer(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	t.Run("sqlite", func(t *testing.T) { testNewer(t, "/db/state.db") })
	t.Run("etcd", func(t *testing.T) { testNewer(t, "/db/etcd/member", "--cluster-init") })
}

// testNewer adopts from a datastore, which is a file or folder of the server's, and for which a kedge
// needs arguments.
func testNewer(t *testing.T, datastore string, args ...string) {
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, node)
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	keys := fmt.Sprintf("kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  providers:\n"+
		"  - secretbox: {keys: [{name: secretboxkey, secret: %s}]}\n  - identity: {}\n", base64.StdEncoding.EncodeToString(secret))
	host.WriteFile("/etc/kedge/keys.yaml", keys)
	server := host.StartServer(t, append(args, "--disable=coredns,metrics-server,servicelb", "--kube-apiserver-arg=encryption-provider-config=/etc/kedge/keys.yaml")...)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Eventually("the parts of k3s to be applied", func() error {
		_, err := c.TryKubectl(parts(), "apply", "--namespace=kube-system", "-f", "-")
		return err
	})
	c.Eventually("what k3s knows of a snapshot", func() error {
		_, err := c.TryKubectl("apiVersion: k3s.cattle.io/v1\nkind: ETCDSnapshotFile\nmetadata: {name: s, finalizers: [wrangler.cattle.io/managed-etcd-snapshots]}\nspec: {snapshotName: on-demand}\n", "apply", "-f", "-")
		return err
	})
	c.Kubectl("create", "secret", "generic", "kept", "--from-literal=a=b")
	c.Kubectl("create", "namespace", "apps")
	for namespace, objects := range map[string]string{"apps": volume, "kube-system": proof} {
		if _, err := c.TryKubectl(objects, "apply", "--namespace="+namespace, "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	c.Eventually("the claim to be bound", func() error {
		phase, err := c.TryKubectl("", "get", "pvc", "data", "--namespace=apps", "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Bound" {
			err = fmt.Errorf("it is %s", phase)
		}
		return err
	})
	token := c.Kubectl("create", "token", "default", "--duration=24h")
	c.Eventually("the pods of k3s's DNS", func() error {
		if pods := c.Kubectl("get", "pods", "--namespace=kube-system", "-o", "name"); !strings.Contains(pods, "pod/coredns-") || !strings.Contains(pods, "pod/svclb-web-") {
			return fmt.Errorf("there are %s", pods)
		}
		return nil
	})
	server.Kill9()

	other := cluster.NewHost(t, network, "server-2")
	copyAll(t, host.Path("/var/lib/kedge/server"), other.Path(newerData+"/server"))
	replaceKey(t, other.Path(newerData+"/server/tls"))
	chain(t, other.Path(newerData+"/server/tls/server-ca.crt"))
	other.WriteFile("/etc/k3s-keys.yaml", keys)
	other.WriteFile("/etc/rancher/k3s/config.yaml", "kube-apiserver-arg: [v=1]\nembedded-registry: true\n")
	other.WriteFile("/etc/rancher/k3s/config.yaml.d/10-keys.yml", "kube-apiserver-arg+: [encryption-provider-config=/etc/k3s-keys.yaml]\n")
	other.WriteFile("/etc/rancher/k3s/config.yaml.d/20-folders.yaml", "data-dir: "+newerData+"\ndefault-local-storage-path: /opt/volumes\n")
	other.WriteFile("/etc/rancher/k3s/registries.yaml", "mirrors:\n  \"*\":\n  docker.io:\n")
	other.WriteFile(newerData+"/agent/images/.cache.json", "{}")
	other.WriteFile(volumeFolder+"/file", "kept\n")
	output, err := other.Kedge(t.Context(), "adopt", "k3s", "--node-name="+node).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", output)
	var named []string
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(fields[1], "kube-system/") {
			named = append(named, fields[0]+" "+strings.TrimPrefix(fields[1], "kube-system/"))
		}
	}
	for _, want := range []string{"deployment.apps coredns", "service kube-dns", "configmap coredns", "service metrics-server", "daemonset.apps svclb-web-12345678"} {
		if !slices.Contains(named, want) {
			t.Errorf("%s is not named", want)
		}
	}
	if !strings.Contains(string(output), "stay in /opt/volumes, and") {
		t.Error("it does not say where volumes are")
	}
	for _, file := range []string{newerData + "/server", "/var/lib/kedge/server"} {
		if _, err := os.Stat(other.Path(file + datastore)); err != nil {
			t.Error(err)
		}
	}
	server = other.StartServer(t, "--node-name="+node, "--embedded-registry")
	server.WaitAPI()
	c = cluster.Of(t, server)
	c.WaitNode(node, "True")
	if kept, err := c.Client.CoreV1().Secrets(cluster.Namespace).Get(c.Context(), "kept", metav1.GetOptions{}); err != nil || string(kept.Data["a"]) != "b" {
		t.Errorf("the Secret is %v, %v", kept, err)
	}
	if who, err := userOf(c, token); err != nil || who != "system:serviceaccount:default:default" {
		t.Errorf("the token of the ServiceAccount is that of %q, %v", who, err)
	}
	wantFile(c)
	c.RunWeb("web", node)
	c.ServeWeb()
	c.Answers("web", "http://web.default.svc.cluster.local/", "web")
	c.Eventually("metrics of the node", func() error {
		_, err := c.TryKubectl("", "top", "node", node)
		return err
	})
	if service := c.Kubectl("get", "service", "kube-dns", "--namespace=kube-system", "-o", "jsonpath={.spec.clusterIP} {.spec.selector}"); service != "10.43.0.10" {
		t.Errorf("the Service of the DNS is %q", service)
	}
	c.Kubectl("delete", "etcdsnapshotfile", "s", "--timeout=60s")
	// Nodes trust the root.
	c.Join(network, "agent-1")
}
