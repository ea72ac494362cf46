package variants

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestControlPlane gives each program of the control plane upstream's arguments in the
// configuration file, and uses what they enable. Then it tries every way to authenticate.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	issuer := serveIssuer(t, host)
	host.WriteFile("/etc/kedge/config.yaml", `
kube-apiserver-arg:
- audit-policy-file=/etc/kedge/audit.yaml
- audit-log-path=/var/log/kedge-audit.log
- encryption-provider-config=/etc/kedge/encryption.yaml
- oidc-issuer-url=`+issuer.url+`
- oidc-ca-file=/etc/kedge/oidc.crt
- oidc-client-id=kedge
- "oidc-username-prefix=oidc:"
- oidc-groups-claim=groups
- event-ttl=2h
kube-controller-manager-arg:
- cluster-signing-duration=2h
kube-scheduler-arg:
- config=/etc/kedge/scheduler.yaml
`)
	host.WriteFile("/etc/kedge/audit.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: None}
`)
	host.WriteFile("/etc/kedge/encryption.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: first, secret: `+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))+`}]}
  - identity: {}
`)
	host.WriteFile("/etc/kedge/scheduler.yaml", `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
`)
	c := start(t, host)
	c.works()

	t.Run("a second scheduler profile", func(t *testing.T) { c.on(t).secondProfile() })
	t.Run("secrets are encrypted and audited", func(t *testing.T) { c.on(t).encryption() })
	t.Run("bootstrap token", func(t *testing.T) { c.on(t).bootstrapToken() })
	t.Run("signed client certificate", func(t *testing.T) { c.on(t).clientCertificate() })
	t.Run("service account token", func(t *testing.T) { c.on(t).serviceAccountToken() })
	t.Run("OIDC", func(t *testing.T) { c.on(t).oidc(issuer) })
	t.Run("nobody", func(t *testing.T) {
		c := c.on(t)
		for path, want := range map[string]int{"/readyz": 200, "/livez": 200, "/healthz": 200, "/api": 401, "/metrics": 401, "/version": 401} {
			var code int
			c.as(func(*rest.Config) {}).Discovery().RESTClient().Get().AbsPath(path).Do(c.ctx).StatusCode(&code)
			if code != want {
				t.Errorf("without a name %s answers %d, want %d", path, code, want)
			}
		}
	})
	t.Run("componentstatuses", func(t *testing.T) {
		statuses := c.on(t).kubectl("get", "componentstatuses", "-o", "jsonpath={range .items[*]}{.metadata.name} {.conditions[0].type}={.conditions[0].status},{end}")
		for _, component := range []string{"scheduler", "controller-manager", "etcd-0"} {
			if !strings.Contains(statuses, component+" Healthy=True") {
				t.Errorf("%s is not healthy: %s", component, statuses)
			}
		}
	})
}

// as returns a client whose only credentials are those that identify adds.
func (c *cluster) as(identify func(*rest.Config)) kubernetes.Interface {
	c.Helper()
	config := rest.AnonymousClientConfig(c.server.RESTConfig())
	identify(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Fatal(err)
	}
	return client
}

func (c *cluster) withToken(token string) kubernetes.Interface {
	c.Helper()
	return c.as(func(config *rest.Config) { config.BearerToken = token })
}

// isKnownAs checks that the API takes a client for user in groups, and that the user has no rights
// by that alone.
func (c *cluster) isKnownAs(client kubernetes.Interface, user string, groups ...string) {
	c.Helper()
	// Informers notice keys and tokens a moment later.
	c.eventually("the API to know "+user, func() error {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(c.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		info := review.Status.UserInfo
		for _, group := range groups {
			if !slices.Contains(info.Groups, group) {
				return fmt.Errorf("%s is in %v, not in %s", info.Username, info.Groups, group)
			}
		}
		if info.Username != user {
			return fmt.Errorf("got user %s, want %s", info.Username, user)
		}
		return nil
	})
	if _, err := client.CoreV1().Secrets("default").List(c.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		c.Errorf("%s asks for secrets and is answered %v", user, err)
	}
}

func (c *cluster) secondProfile() {
	c.sleeper("packed", "schedulerName: packer,")
	c.eventually("the event of the second profile", func() error {
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=packed,reason=Scheduled"})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.ReportingController == "packer" {
				return nil
			}
		}
		return fmt.Errorf("%d events, none by packer", len(events.Items))
	})
}

func (c *cluster) encryption() {
	marker, open := "m"+rand.Text(), "o"+rand.Text()
	c.kubectl("create", "secret", "generic", "treasure", "--from-literal=key="+marker)
	c.kubectl("create", "configmap", "treasure", "--from-literal=key="+open)
	if got := c.kubectl("get", "secret", "treasure", "-o", "jsonpath={.data.key}"); got != base64.StdEncoding.EncodeToString([]byte(marker)) {
		c.Errorf("the secret reads %q", got)
	}
	var database []byte
	files, _ := filepath.Glob(c.host.Path("/var/lib/kedge/server/db/*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			c.Fatal(err)
		}
		database = append(database, text...)
	}
	if !bytes.Contains(database, []byte(open)) || !bytes.Contains(database, []byte("k8s:enc:aescbc:v1:first:")) {
		c.Error("the database at its path does not have the expected data")
	}
	if bytes.Contains(database, []byte(marker)) {
		c.Error("the secret is in the database unencrypted")
	}
	log, err := os.ReadFile(c.host.Path("/var/log/kedge-audit.log"))
	if err != nil {
		c.Fatal(err)
	}
	if !strings.Contains(string(log), `"verb":"create"`) || !strings.Contains(string(log), `"name":"treasure"`) ||
		!strings.Contains(string(log), "kedge-admin") || strings.Contains(string(log), "configmaps") || strings.Contains(string(log), marker) {
		c.Errorf("the audit log is\n%.3000s", log)
	}
}

func (c *cluster) bootstrapToken() {
	c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
  auth-extra-groups: system:bootstrappers:workers
  expiration: %s
`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	c.isKnownAs(c.withToken("abcdef.0123456789abcdef"), "system:bootstrap:abcdef", "system:bootstrappers", "system:bootstrappers:workers")
	if _, err := c.withToken("abcdef.fedcba9876543210").Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		c.Errorf("a wrong token is answered %v", err)
	}
	// The bootstrap signer signs cluster-info with the token, once there is one.
	c.kubectl("create", "configmap", "cluster-info", "-n", "kube-public", "--from-literal=kubeconfig=test")
	c.eventually("cluster-info to be signed", func() error {
		info, err := c.client.CoreV1().ConfigMaps("kube-public").Get(c.ctx, "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-abcdef"] == "" {
			err = fmt.Errorf("its keys are %v", info.Data)
		}
		return err
	})
	// The token cleaner removes expired tokens.
	c.kubectl("patch", "secret", "-n", "kube-system", "bootstrap-token-abcdef", "-p", `{"stringData":{"expiration":"2020-01-01T00:00:00Z"}}`)
	c.eventually("the expired token to be removed", func() error {
		_, err := c.client.CoreV1().Secrets("kube-system").Get(c.ctx, "bootstrap-token-abcdef", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

func (c *cluster) clientCertificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "bob", Organization: []string{"builders"}}}, key)
	if err != nil {
		c.Fatal(err)
	}
	requests := c.client.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Create(c.ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.kubectl("certificate", "approve", "bob")
	var issued []byte
	c.eventually("the certificate to be signed", func() error {
		csr, err := requests.Get(c.ctx, "bob", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if issued = csr.Status.Certificate; len(issued) == 0 {
			return fmt.Errorf("conditions %+v", csr.Status.Conditions)
		}
		return nil
	})
	block, _ := pem.Decode(issued)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		c.Fatal(err)
	}
	// cluster-signing-duration is 2h.
	if held := cert.NotAfter.Sub(cert.NotBefore); held > 3*time.Hour {
		c.Errorf("it holds for %s", held)
	}
	own := &certificate{cert, key}
	client := c.as(func(config *rest.Config) {
		config.CertData, config.KeyData = issued, []byte(own.keyPEM(c.T))
	})
	c.isKnownAs(client, "bob", "builders", "system:authenticated")

	c.kubectl("create", "rolebinding", "builders", "--clusterrole=view", "--group=builders")
	c.eventually("bob to see pods", func() error {
		_, err := client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{})
		return err
	})
	if _, err := client.CoreV1().Pods("kube-system").List(c.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		c.Errorf("bob sees pods elsewhere: %v", err)
	}

	// A certificate of another authority belongs to no user.
	stranger := issue(c.T, authority(c.T, "stranger", nil), &x509.Certificate{
		Subject: pkix.Name{CommonName: "kedge-admin", Organization: []string{"kedge:cluster-admins", "system:masters"}}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotAfter: time.Now().AddDate(1, 0, 0),
	})
	client = c.as(func(config *rest.Config) {
		config.CertData, config.KeyData = []byte(stranger.certPEM()), []byte(stranger.keyPEM(c.T))
	})
	if _, err := client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		c.Errorf("a certificate of another authority is answered %v", err)
	}
}

func (c *cluster) serviceAccountToken() {
	c.kubectl("create", "serviceaccount", "robot")
	token := c.kubectl("create", "token", "robot", "--duration=10m")
	c.isKnownAs(c.withToken(token), "system:serviceaccount:default:robot", "system:serviceaccounts:default")
	other := c.kubectl("create", "token", "robot", "--audience=elsewhere")
	if _, err := c.withToken(other).Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		c.Errorf("a token for another audience is answered %v", err)
	}
	// A pod's credentials work within the pod, and end with the pod.
	c.kubectl("run", "reader", "--image="+busybox, "--restart=Never", `--overrides={"spec":{"serviceAccountName":"robot"}}`,
		"--command", "--", "sleep", "1000")
	c.pod("reader")
	bound := c.in("reader", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	client := c.withToken(bound)
	c.isKnownAs(client, "system:serviceaccount:default:robot")
	c.kubectl("delete", "pod", "reader", "--now")
	c.eventually("the token of a deleted pod to be refused", func() error {
		_, err := client.Discovery().ServerVersion()
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it is answered %v", err)
		}
		return nil
	})
	var discovery struct{ Issuer string }
	if err := json.Unmarshal([]byte(c.kubectl("get", "--raw", "/.well-known/openid-configuration")), &discovery); err != nil {
		c.Fatal(err)
	}
	if discovery.Issuer != "https://kubernetes.default.svc.cluster.local" {
		c.Errorf("the issuer of service accounts is %s", discovery.Issuer)
	}
}

// issuer is an OIDC identity provider.
type issuer struct {
	url string
	key *rsa.PrivateKey
}

// serveIssuer serves on the host what an OIDC client requests, and gives the host the certificate
// authority of that server.
func serveIssuer(t *testing.T, host *harness.Host) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ca := authority(t, "identity provider", nil)
	pair := serverCertificate(t, ca, "127.0.0.1")
	host.WriteFile("/etc/kedge/oidc.crt", ca.certPEM())
	i := &issuer{url: "https://127.0.0.1:9443", key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.url, "jwks_uri": i.url + "/keys", "authorization_endpoint": i.url + "/auth",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encode := base64.RawURLEncoding.EncodeToString
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one",
			"n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	listener := tls.NewListener(host.Listen("127.0.0.1:9443"), &tls.Config{Certificates: []tls.Certificate{
		{Certificate: [][]byte{pair.Raw}, PrivateKey: pair.key},
	}})
	go func() { _ = http.Serve(listener, mux) }()
	return i
}

// token signs claims with a key: RFC 7519.
func (i *issuer) token(t *testing.T, key *rsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	part := func(value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	claims["iss"], claims["iat"] = i.url, time.Now().Unix()
	signed := part(map[string]string{"alg": "RS256", "kid": "one", "typ": "JWT"}) + "." + part(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func (c *cluster) oidc(i *issuer) {
	claims := func(audience string, ends time.Duration) map[string]any {
		return map[string]any{"sub": "alice", "aud": audience, "groups": []string{"gardeners"}, "exp": time.Now().Add(ends).Unix()}
	}
	c.isKnownAs(c.withToken(i.token(c.T, i.key, claims("kedge", time.Hour))), "oidc:alice", "gardeners")
	forger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		c.Fatal(err)
	}
	for fault, token := range map[string]string{
		"of another audience": i.token(c.T, i.key, claims("elsewhere", time.Hour)),
		"that has ended":      i.token(c.T, i.key, claims("kedge", -time.Hour)),
		"of another key":      i.token(c.T, forger, claims("kedge", time.Hour)),
	} {
		if _, err := c.withToken(token).Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
			c.Errorf("a token %s is answered %v", fault, err)
		}
	}
}
