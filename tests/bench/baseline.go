package bench

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/tests/harness"
)

//go:embed baseline
var files embed.FS

const (
	// stateDir is a folder that a host of the harness has on a real disk.
	stateDir         = "/var/lib/kedge/baseline"
	containerdSocket = "/run/containerd/containerd.sock"
	manifestsDir     = "/etc/kubernetes/manifests"
	superAdmin       = "/etc/kubernetes/super-admin.conf"
	subnetFile       = "/run/flannel/subnet.env"
	// restartDelay is how long after its end a program is started again. It is much less than systemd's
	// 10 s for the kubelet, and than the kubelet's back-off.
	restartDelay = 500 * time.Millisecond
	// stopTimeout is less than the time that systemd gives a service to end.
	stopTimeout = 30 * time.Second
)

// baseline is upstream's separate executables, configured by kubeadm and run as processes of the host.
type baseline struct {
	t        *testing.T
	host     *harness.Host
	binaries string
	values   baselineValues
	// archives are image archives that are preloaded besides the pause image.
	archives []string
	ctx      context.Context
	running  sync.WaitGroup
	// programs are the programs that keep has started, in order.
	mutex    sync.Mutex
	programs [][]string
	current  map[string]*harness.Cmd
	stopped  map[string]chan struct{}
	stopping chan struct{}
	ends     int
	// fail ends the measurement.
	fail context.CancelCauseFunc
}

// baselineValues are the values for the templates below baseline/.
type baselineValues struct {
	Kubernetes, Address, State, Helpers, PauseImage string
	Cgroup, CgroupDriver                            string
	PodCIDR                                         string
	Restricted                                      bool
	OOMScoreAdj                                     int
	OpenFiles                                       uint64
}

func newBaseline(t *testing.T, h *harness.Host, fail context.CancelCauseFunc, repository, helpers, kubernetesVersion string) *baseline {
	facts, err := host.Detect()
	if err != nil {
		t.Fatal(err)
	}
	b := &baseline{t: t, host: h, fail: fail, binaries: filepath.Join(repository, binariesDir), current: map[string]*harness.Cmd{}, stopped: map[string]chan struct{}{}, stopping: make(chan struct{})}
	b.values = baselineValues{
		Kubernetes:   kubernetesVersion,
		Address:      h.Address.String(),
		State:        stateDir,
		Helpers:      helpers,
		PauseImage:   assets.PauseImage,
		Cgroup:       h.Cgroup(),
		CgroupDriver: facts.CgroupDriver,
		PodCIDR:      "10.244.0.0/16",
		// These are upstream's defaults, where the kernel allows them.
		OOMScoreAdj: -999,
		OpenFiles:   1_000_000,
	}
	if !facts.SysResource {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		b.values.Restricted = true
		b.values.OOMScoreAdj = 0
		b.values.OpenFiles = min(b.values.OpenFiles, limit.Max)
	}
	return b
}

func (b *baseline) kubeconfig() string { return superAdmin }

// start starts everything as `kubeadm init` and its user do. It waits only where that is necessary.
func (b *baseline) start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.ctx = ctx
	b.t.Cleanup(func() {
		cancel()
		b.running.Wait()
		if b.t.Failed() {
			b.showLogs()
		}
	})
	b.write("/etc/containerd/config.toml", "containerd.toml")
	b.write("/etc/kubernetes/kubeadm.yaml", "kubeadm.yaml")
	b.keep("containerd", "--config", "/etc/containerd/config.toml")
	b.try("preload images", b.preload)
	b.try("set up the cluster", func() error {
		if err := b.initialise(); err != nil {
			return err
		}
		return b.addOns()
	})
}

// try runs f in a goroutine.
func (b *baseline) try(what string, f func() error) {
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		if err := f(); err != nil {
			b.fail(fmt.Errorf("%s: %w", what, err))
		}
	}()
}

// initialise lets kubeadm make certificates and configurations. It then starts the programs for
// which kubeadm wrote manifests, and the kubelet, as processes.
func (b *baseline) initialise() error {
	skipped := "preflight,wait-control-plane,upload-config,upload-certs,mark-control-plane,bootstrap-token,kubelet-finalize,addon,show-join-command"
	kubeadm := b.command("kubeadm", "init", "--config", "/etc/kubernetes/kubeadm.yaml", "--skip-phases", skipped)
	if output, err := kubeadm.CombinedOutput(); err != nil {
		return fmt.Errorf("kubeadm init: %w: %s", err, output)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		path := b.host.Path(filepath.Join(manifestsDir, name+".yaml"))
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var pod corev1.Pod
		if err := yaml.Unmarshal(text, &pod); err != nil {
			return fmt.Errorf("decode %s: %w", path, err)
		}
		// Otherwise the kubelet would run the program as a pod.
		if err := os.Remove(path); err != nil {
			return err
		}
		command := pod.Spec.Containers[0].Command
		b.keep(command[0], command[1:]...)
	}
	environment, err := os.ReadFile(b.host.Path("/var/lib/kubelet/kubeadm-flags.env"))
	if err != nil {
		return err
	}
	_, flags, _ := strings.Cut(string(environment), "=")
	// The first four are those of kubeadm's unit file for systemd.
	b.keep("kubelet", append([]string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
		"--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--config=/var/lib/kubelet/config.yaml",
	}, strings.Fields(strings.Trim(strings.TrimSpace(flags), `"`))...)...)
	return nil
}

// addOns waits until the API is ready, applies what kubeadm and the user would apply then, and
// starts the programs that they would run as pods.
func (b *baseline) addOns() error {
	if err := waitReadyz(b.ctx, b.host); err != nil {
		return err
	}
	cfg, err := restConfig(b.host, superAdmin)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	text, err := b.render("cluster.yaml", b.values)
	if err != nil {
		return err
	}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if _, err := client.Resource(resource).Namespace(object.GetNamespace()).Create(b.ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	for account, namespace := range map[string]string{"kube-proxy": "kube-system", "coredns": "kube-system", "flannel": "kube-flannel"} {
		if err := b.writeKubeconfig(namespace, account); err != nil {
			return err
		}
	}
	b.write("/var/lib/kube-proxy/config.conf", "kube-proxy.yaml")
	b.write("/etc/coredns/Corefile", "Corefile")
	b.write("/etc/kube-flannel/net-conf.json", "net-conf.json")
	b.keep("kube-proxy", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override="+b.host.Name)
	b.keep("coredns", "-conf", "/etc/coredns/Corefile")
	b.keep("flanneld", "--ip-masq", "--kube-subnet-mgr", "--kubeconfig-file=/etc/kubernetes/flannel.conf")
	return b.configureCNI()
}

// writeKubeconfig writes /etc/kubernetes/ACCOUNT.conf with a token like that of the account's pods.
func (b *baseline) writeKubeconfig(namespace, account string) error {
	cfg, err := restConfig(b.host, superAdmin)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(b.ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("request token: %w", err)
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["default"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	kubeconfig.AuthInfos["default"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	kubeconfig.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	kubeconfig.CurrentContext = "default"
	text, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return err
	}
	return os.WriteFile(b.host.Path("/etc/kubernetes/"+account+".conf"), text, 0o600)
}

// configureCNI waits until flannel has written the node's subnet, and writes the configuration of
// the plugin bridge that flannel's CNI plugin would make from it.
func (b *baseline) configureCNI() error {
	values := map[string]string{}
	for values["FLANNEL_MTU"] == "" {
		text, err := os.ReadFile(b.host.Path(subnetFile))
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values[name] = value
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := pause(b.ctx); err != nil {
			return err
		}
	}
	// flannel writes the address of the bridge with the length of the prefix.
	subnet, err := netip.ParsePrefix(values["FLANNEL_SUBNET"])
	if err != nil {
		return fmt.Errorf("read %s: %w", subnetFile, err)
	}
	values["FLANNEL_SUBNET"] = subnet.Masked().String()
	text, err := b.render("flannel.conflist", values)
	if err != nil {
		return err
	}
	b.host.WriteFile("/etc/cni/net.d/10-flannel.conflist", string(text))
	return nil
}

// preload imports the pause image, which a user of kubeadm would have pulled, and the archives.
func (b *baseline) preload() error {
	pause := filepath.Join(filepath.Dir(b.values.Helpers), "images", "pause.tar")
	for _, archive := range append([]string{pause}, b.archives...) {
		if err := b.preloadArchive(archive); err != nil {
			return err
		}
	}
	return nil
}

// preloadArchive imports an archive as soon as containerd answers.
func (b *baseline) preloadArchive(path string) error {
	for {
		err := b.importArchive(path)
		if err == nil || b.ctx.Err() != nil {
			return err
		}
		if !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "deadline") {
			return err
		}
		if err := pause(b.ctx); err != nil {
			return err
		}
	}
}

func (b *baseline) importArchive(path string) error {
	socket := b.host.Path(containerdSocket)
	if _, err := os.Stat(socket); err != nil {
		return err
	}
	client, err := containerd.New(socket, containerd.WithDefaultNamespace("k8s.io"))
	if err != nil {
		return err
	}
	defer client.Close()
	archive, err := os.Open(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	// The CRI recognises its images by this label.
	images, err := client.Import(b.ctx, archive, containerd.WithImageLabels(map[string]string{"io.cri-containerd.image": "managed"}))
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := containerd.NewImage(client, image).Unpack(b.ctx, ""); err != nil {
			return err
		}
	}
	return nil
}

func (b *baseline) command(name string, args ...string) *harness.Cmd {
	cmd := b.host.Command(b.ctx, filepath.Join(b.binaries, name), args...)
	cmd.Env = append(cmd.Env, "NODE_NAME="+b.host.Name, "EVENT_QUEUE_DEPTH=5000",
		"PATH="+b.values.Helpers+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return cmd
}

// keep runs a program until stop is called or the test ends, and starts it again if it ends. The
// output goes to a file of the host.
func (b *baseline) keep(name string, args ...string) {
	b.mutex.Lock()
	b.programs = append(b.programs, append([]string{name}, args...))
	stopping, stopped := b.stopping, make(chan struct{})
	b.stopped[name] = stopped
	b.mutex.Unlock()
	b.try("run "+name, func() error {
		defer close(stopped)
		log, err := os.OpenFile(b.host.Path(logFile(name)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		defer log.Close()
		for {
			cmd := b.command(name, args...)
			cmd.Stdout, cmd.Stderr = log, log
			if err := cmd.Start(); err != nil {
				return err
			}
			b.mutex.Lock()
			b.current[name] = cmd
			b.mutex.Unlock()
			_ = cmd.Wait()
			b.mutex.Lock()
			b.ends++
			b.mutex.Unlock()
			select {
			case <-b.ctx.Done():
				return nil
			case <-stopping:
				return nil
			case <-time.After(restartDelay):
			}
		}
	})
}

// restarts returns how often programs have ended.
func (b *baseline) restarts() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.ends
}

// stop ends all programs in order. The database is last, because the API server would wait for it.
func (b *baseline) stop() {
	b.mutex.Lock()
	close(b.stopping)
	current := maps.Clone(b.current)
	b.mutex.Unlock()
	database := current["etcd"]
	delete(current, "etcd")
	for _, cmd := range current {
		_ = cmd.Process.Signal(unix.SIGTERM)
	}
	deadline := time.AfterFunc(stopTimeout, func() {
		for _, cmd := range current {
			_ = cmd.Process.Kill()
		}
	})
	defer deadline.Stop()
	for name := range current {
		b.waitStopped(name)
	}
	if database != nil {
		_ = database.Process.Signal(unix.SIGTERM)
	}
	b.running.Wait()
}

// waitStopped waits until a program is no longer kept running.
func (b *baseline) waitStopped(name string) {
	b.mutex.Lock()
	stopped := b.stopped[name]
	b.mutex.Unlock()
	<-stopped
}

// startAgain starts the programs that stop has ended, with the same arguments.
func (b *baseline) startAgain() {
	b.mutex.Lock()
	programs := b.programs
	b.programs, b.stopping = nil, make(chan struct{})
	b.mutex.Unlock()
	for _, program := range programs {
		b.keep(program[0], program[1:]...)
	}
}

func logFile(name string) string { return filepath.Join("/var/lib/kedge", name+".log") }

// showLogs shows the ends of all programs' logs.
func (b *baseline) showLogs() {
	logs, _ := filepath.Glob(b.host.Path(logFile("*")))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		b.t.Logf("the end of %s:\n%s", filepath.Base(log), text[max(0, len(text)-1500):])
	}
}

// write renders a template to a file of the host.
func (b *baseline) write(path, name string) {
	text, err := b.render(name, b.values)
	if err != nil {
		b.t.Fatal(err)
	}
	b.host.WriteFile(path, string(text))
}

func (b *baseline) render(name string, values any) ([]byte, error) {
	source, err := files.ReadFile("baseline/" + name)
	if err != nil {
		return nil, err
	}
	parsed, err := template.New(name).Option("missingkey=error").Parse(string(source))
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("render template: %w", err)
	}
	return out.Bytes(), nil
}
