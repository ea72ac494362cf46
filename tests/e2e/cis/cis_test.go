// Package cis runs the checks of the CIS Kubernetes Benchmark, v1.8, by their numbers, on a server
// with the profile cis. kube-bench has such checks for k3s, but looks at the arguments of
// executables. These checks look at the running server from outside. A check that fails or does not
// apply says why.
package cis

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// check is a check of the benchmark.
type check struct {
	id, text string
	// holds returns nil if the check passes. It is nil if the check does not apply, is for the
	// cluster's administrator, or fails. Then why says so.
	holds func(*bench) error
	why   string
}

// The results, as kube-bench calls them.
const (
	pass   = "PASS"
	absent = "N/A"
	manual = "WARN" // for the cluster's administrator
	fail   = "FAIL" // why says the reason
)

// bench is the server that is checked.
type bench struct {
	*cluster.Cluster
	host *harness.Host
	// kubelet is the kubelet's configuration, from its own API.
	kubelet map[string]any
}

func TestBenchmark(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	// Every other kubelet sets these itself.
	output, err := host.Command(t.Context(), "sysctl", "-w", "vm.overcommit_memory=1", "vm.panic_on_oom=0", "kernel.panic=10",
		"kernel.panic_on_oops=1", "kernel.keys.root_maxkeys=1000000", "kernel.keys.root_maxbytes=25000000").CombinedOutput()
	if err != nil {
		t.Fatalf("set the kernel's settings: %v: %s", err, output)
	}
	server := host.StartServer(t, "--cluster-init", "--profile=cis")
	server.WaitReady()
	c := cluster.Of(t, server)
	b := &bench{Cluster: c, host: host}
	answer, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/server-1/proxy/configz").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var configz struct {
		Kubelet map[string]any `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(answer, &configz); err != nil || configz.Kubelet == nil {
		t.Fatalf("the kubelet's configuration is %s: %v", answer, err)
	}
	b.kubelet = configz.Kubelet

	counts, seen := map[string]int{}, map[string]bool{}
	for _, check := range slices.Concat(controlPlane(), node(), policies()) {
		if seen[check.id] {
			t.Errorf("%s is there twice", check.id)
		}
		seen[check.id] = true
		result, _, _ := strings.Cut(check.why, ":")
		if check.holds != nil {
			result = pass
			if err := check.holds(b); err != nil {
				t.Errorf("%s %s: %v", check.id, check.text, err)
			}
		} else if !slices.Contains([]string{absent, manual, fail}, result) {
			t.Errorf("%s %s: nothing is checked, and nothing said", check.id, check.text)
		}
		counts[result]++
		t.Logf("%-4s %-7s %s. %s", result, check.id, check.text, check.why)
	}
	t.Logf("%v", counts)
}

// TestKernelDefaults checks that a host with other kernel settings is reported, and that nothing is
// changed.
func TestKernelDefaults(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	// kedge reads these files instead of the machine's, because a test must not change the
	// machine's settings.
	const panics = "/run/panic" // the host's /run is its own, and goes with it
	host.WriteFile(panics, "0\n")
	if output, err := host.Command(t.Context(), "mount", "--bind", panics, "/proc/sys/kernel/panic").CombinedOutput(); err != nil {
		t.Fatalf("mount another value of kernel.panic: %v: %s", err, output)
	}
	server := host.StartServer(t, "--protect-kernel-defaults")
	if status := server.WaitExit(cluster.Patience); status == 0 {
		t.Error("it ended without an error")
	}
	for _, want := range []string{"protect-kernel-defaults", "kernel.panic = 10   # is 0", "/etc/sysctl.d/90-kedge.conf"} {
		if !strings.Contains(server.Log(), want) {
			t.Errorf("the log has no %q", want)
		}
	}
}

// modes checks that the files which patterns name belong to root and have at most these permissions.
func modes(most fs.FileMode, patterns ...string) func(*bench) error {
	return func(b *bench) error {
		var faults []error
		for _, pattern := range patterns {
			files, err := filepath.Glob(b.host.Path(pattern))
			if err != nil || len(files) == 0 {
				faults = append(faults, fmt.Errorf("there is no %s (%w)", pattern, err))
			}
			for _, file := range files {
				info, err := os.Stat(file)
				if err != nil {
					return err
				}
				owner, _ := info.Sys().(*syscall.Stat_t)
				if info.Mode().Perm()&^most != 0 || owner.Uid != 0 || owner.Gid != 0 {
					faults = append(faults, fmt.Errorf("%s is %v and %d:%d's", file, info.Mode(), owner.Uid, owner.Gid))
				}
			}
		}
		return errors.Join(faults...)
	}
}

// kubeletHas checks a setting of the kubelet.
func kubeletHas(key string, fits func(value any) bool) func(*bench) error {
	return func(b *bench) error {
		var value any = b.kubelet
		for part := range strings.SplitSeq(key, ".") {
			settings, _ := value.(map[string]any)
			value = settings[part]
		}
		if !fits(value) {
			return fmt.Errorf("%s is %v", key, value)
		}
		return nil
	}
}

func equals(want any) func(any) bool { return func(value any) bool { return value == want } }

// status returns the status of the answer at HOST:PORT. The request has a token unless token is empty.
func (b *bench) status(address, path, token string) (int, error) {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return 0, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: b.host.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// at returns HOST:PORT for a port of the host.
func (b *bench) at(port string) string { return net.JoinHostPort(b.host.Address.String(), port) }

// answers checks the status at a port for a client without credentials.
func answers(port, path string, want int) func(*bench) error {
	return func(b *bench) error {
		got, err := b.status(b.at(port), path, "")
		if err == nil && got != want {
			err = fmt.Errorf("port %s answers %d at %s", port, got, path)
		}
		return err
	}
}

// refuses checks that HOST:PORT ends a connection with an error that contains why.
func (b *bench) refuses(address, why string, settings *tls.Config) error {
	raw, err := b.host.DialContext(b.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer raw.Close()
	settings.InsecureSkipVerify = true
	conn := tls.Client(raw, settings)
	if err = conn.HandshakeContext(b.Context()); err == nil {
		// With TLS 1.3 the server's alert comes after the handshake.
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil || !strings.Contains(err.Error(), why) {
		return fmt.Errorf("%s does not refuse: %w", address, err)
	}
	return nil
}

// wantsCertificate checks that a port refuses clients without a certificate.
func wantsCertificate(port string) func(*bench) error {
	return func(b *bench) error { return b.refuses(b.at(port), "certificate required", &tls.Config{}) }
}

// encryptedWell checks that a port refuses ciphers that the benchmark does not list.
func encryptedWell(port string) func(*bench) error {
	return func(b *bench) error {
		return errors.Join(
			b.refuses(b.at(port), "protocol version", &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}),
			b.refuses(b.at(port), "handshake failure", &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
				tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA, tls.TLS_ECDHE_ECDSA_WITH_RC4_128_SHA,
			}}),
		)
	}
}

// onLoopback checks that a port is open only on the loopback address.
func onLoopback(port string) func(*bench) error {
	return func(b *bench) error {
		output, err := b.host.Command(b.Context(), "ss", "-Hlnt").Output()
		if err != nil {
			return err
		}
		found := 0
		for line := range strings.Lines(string(output)) {
			fields := strings.Fields(line)
			if len(fields) < 4 || !strings.HasSuffix(fields[3], ":"+port) {
				continue
			}
			found++
			if fields[3] != "127.0.0.1:"+port {
				return fmt.Errorf("it listens on %s", fields[3])
			}
		}
		if found == 0 {
			return errors.New("nobody listens")
		}
		return nil
	}
}

// as returns a client that impersonates a user.
func (b *bench) as(user string, groups ...string) kubernetes.Interface {
	settings := rest.CopyConfig(b.Server.RESTConfig())
	settings.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

// forbidden checks that an error means "forbidden" and contains why.
func forbidden(err error, why string) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		return fmt.Errorf("the answer is: %w", err)
	}
	return nil
}

// admits checks whether an admission plugin is active.
func admits(plugin string, want bool) func(*bench) error {
	return func(b *bench) error {
		text, err := b.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
		if err != nil {
			return err
		}
		if found := strings.Contains(string(text), `apiserver_admission_controller_admission_duration_seconds_count{name="`+plugin+`"`); found != want {
			return fmt.Errorf("that it was asked is %t", found)
		}
		return nil
	}
}

// serviceAccount makes a service account and returns a token for it.
func (b *bench) serviceAccount(name string) (string, error) {
	accounts := b.Client.CoreV1().ServiceAccounts(cluster.Namespace)
	if _, err := accounts.Create(b.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	token, err := b.Client.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/"+cluster.Namespace+"/serviceaccounts/"+name+"/token").
		Body([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)).SetHeader("Content-Type", "application/json").DoRaw(b.Context())
	if err != nil {
		return "", err
	}
	var request struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	return request.Status.Token, errors.Join(json.Unmarshal(token, &request), err)
}

// audit checks that the audit log has lines with all of these texts.
func audit(texts ...string) func(*bench) error {
	return func(b *bench) error {
		log, err := os.ReadFile(b.host.Path(auditLog))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(log)) {
			missing := slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
			if !missing {
				return nil
			}
		}
		return fmt.Errorf("no line of the audit log has %q", texts)
	}
}

// certificates reads the certificate authority in a file.
func (b *bench) certificates(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(b.host.Path(path))
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = errors.New("there is no certificate in " + path)
	}
	return pool, err
}
