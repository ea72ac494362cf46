// Package acmeserver is a small authority that speaks ACME (RFC 8555), for tests of package acme and for tests
// with a whole cluster. It checks signatures and nonces.
package acmeserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The challenges that the authority knows.
const (
	HTTP01    = "http-01"
	TLSALPN01 = "tls-alpn-01"
)

// Host is the name of an authority that does not listen on loopback.
const Host = "example.com"

// problemPrefix is that of the types of problems (RFC 8555, section 6.7).
const problemPrefix = "urn:ietf:params:acme:error:"

// Probe looks for the answer to a challenge, as an authority does from outside.
type Probe func(kind, host, token, keyAuthorization string) error

// Authority is an authority. Change its fields before it gets requests, and read them when it gets no more.
type Authority struct {
	// Kinds are the challenges that it offers.
	Kinds []string
	// Life is how long certificates are valid.
	Life time.Duration
	// Limited says that there were too many requests, and External that accounts are made elsewhere.
	Limited, External bool
	// Spoil changes what it says about an authorization.
	Spoil func(authorization map[string]any)
	// Requests counts the requests. Contacts are those of the accounts, and Probed are the challenges that were
	// looked for: KIND HOST.
	Requests         int
	Contacts, Probed []string

	t      testing.TB
	server *httptest.Server
	// base is the URL that clients use, without a path.
	base string
	key  *ecdsa.PrivateKey

	mu       sync.Mutex
	probe    Probe
	nonces   map[string]bool
	accounts []*ecdsa.PublicKey
	orders   []*order
}

// order is an order. Its authorizations are those of its hosts.
type order struct {
	hosts       []string
	status      []string
	certificate []byte
}

// Start runs an authority until the end of the test. If listener is nil, it listens on loopback.
func Start(t testing.TB, listener net.Listener) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &Authority{t: t, key: key, Kinds: []string{"dns-01", HTTP01, TLSALPN01}, Life: 90 * 24 * time.Hour, nonces: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, _ *http.Request) {
		a.write(w, http.StatusOK, map[string]any{
			"newNonce": a.URL("nonce"), "newAccount": a.URL("account"), "newOrder": a.URL("order"),
			"meta": map[string]any{"termsOfService": "https://example.com", "externalAccountRequired": a.External},
		})
	})
	mux.HandleFunc("HEAD /nonce", func(w http.ResponseWriter, _ *http.Request) { a.write(w, http.StatusOK, nil) })
	mux.HandleFunc("POST /account", a.signed(a.account))
	mux.HandleFunc("POST /order", a.signed(a.order))
	mux.HandleFunc("POST /order/{order}", a.signed(a.showOrder))
	mux.HandleFunc("POST /authorization/{order}/{host}", a.signed(a.showAuthorization))
	mux.HandleFunc("POST /challenge/{order}/{host}/{kind}", a.signed(a.challenge))
	mux.HandleFunc("POST /finalize/{order}", a.signed(a.finalize))
	mux.HandleFunc("POST /certificate/{order}", a.signed(a.certificate))
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.Requests++
		mux.ServeHTTP(w, r)
	}))
	if listener != nil {
		_ = a.server.Listener.Close()
		a.server.Listener = listener
	}
	a.server.StartTLS()
	t.Cleanup(a.server.Close)
	_, port, err := net.SplitHostPort(a.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a.base = "https://127.0.0.1:" + port
	if listener != nil {
		a.base = "https://" + Host + ":" + port
	}
	return a
}

// SetProbe sets how the authority looks for answers to challenges.
func (a *Authority) SetProbe(probe Probe) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probe = probe
}

// Hosts returns the hosts of all orders.
func (a *Authority) Hosts() (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, order := range a.orders {
		all = append(all, order.hosts...)
	}
	return all
}

// URL returns the address of a path. The path of the directory is "directory".
func (a *Authority) URL(parts ...any) string {
	url := a.base
	for _, part := range parts {
		url += "/" + fmt.Sprint(part)
	}
	return url
}

// Trust returns the certificate, in PEM, that clients verify the server with.
func (a *Authority) Trust() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
}

// write answers with JSON and a nonce.
func (a *Authority) write(w http.ResponseWriter, status int, value any) {
	nonce := rand.Text()
	a.nonces[nonce] = true
	w.Header().Set("Replay-Nonce", nonce)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if value != nil {
		_ = json.NewEncoder(w).Encode(value)
	}
}

// problem answers with an error.
func (a *Authority) problem(w http.ResponseWriter, status int, kind, detail string) {
	a.write(w, status, map[string]any{"type": problemPrefix + kind, "detail": detail, "status": status})
}

// message is a signed request.
type message struct {
	*http.Request
	account    int
	payload    []byte
	thumbprint string
}

// signed checks the signature of requests.
func (a *Authority) signed(handle func(http.ResponseWriter, *message)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m := &message{Request: r}
		if err := a.verify(m); err != nil {
			a.t.Errorf("%s: %s", r.URL, err)
			a.problem(w, http.StatusBadRequest, "malformed", err.Error())
			return
		}
		if a.Limited {
			w.Header().Set("Retry-After", "7200")
			a.problem(w, http.StatusTooManyRequests, "rateLimited", "too many requests")
			return
		}
		handle(w, m)
	}
}

func decode(text string) []byte {
	bytes, _ := base64.RawURLEncoding.DecodeString(text)
	return bytes
}

// verify checks the nonce, the URL and the signature of a request, and finds its account.
func (a *Authority) verify(m *message) error {
	var jws struct{ Protected, Payload, Signature string }
	if err := json.NewDecoder(m.Body).Decode(&jws); err != nil {
		return err
	}
	var head struct {
		Nonce, URL, Kid string
		JWK             *struct{ X, Y string }
	}
	if err := json.Unmarshal(decode(jws.Protected), &head); err != nil {
		return err
	}
	if !a.nonces[head.Nonce] || head.URL != a.base+m.URL.Path {
		return fmt.Errorf("nonce %q or URL %q", head.Nonce, head.URL)
	}
	delete(a.nonces, head.Nonce)
	if head.JWK != nil {
		key := &ecdsa.PublicKey{Curve: elliptic.P256(), X: new(big.Int).SetBytes(decode(head.JWK.X)), Y: new(big.Int).SetBytes(decode(head.JWK.Y))}
		m.account = -1
		for i, known := range a.accounts {
			if known.Equal(key) {
				m.account = i
			}
		}
		if m.account < 0 {
			a.accounts = append(a.accounts, key)
			m.account = len(a.accounts) - 1
		}
	} else {
		number, err := strconv.Atoi(strings.TrimPrefix(head.Kid, a.URL("account")+"/"))
		if err != nil || number >= len(a.accounts) {
			return fmt.Errorf("no account %q", head.Kid)
		}
		m.account = number
	}
	key := a.accounts[m.account]
	sum := sha256.Sum256([]byte(jws.Protected + "." + jws.Payload))
	signature := decode(jws.Signature)
	if len(signature) != 64 || !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		return fmt.Errorf("the signature is wrong")
	}
	point, err := key.Bytes()
	if err != nil {
		return err
	}
	encoded := base64.RawURLEncoding.EncodeToString
	print := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":%q,"y":%q}`, encoded(point[1:33]), encoded(point[33:])))
	m.payload, m.thumbprint = decode(jws.Payload), encoded(print[:])
	return nil
}

func (a *Authority) account(w http.ResponseWriter, m *message) {
	var asked struct {
		Contact              []string
		TermsOfServiceAgreed bool
	}
	_ = json.Unmarshal(m.payload, &asked)
	w.Header().Set("Location", a.URL("account", m.account))
	status := http.StatusOK
	if len(a.Contacts) <= m.account {
		a.Contacts, status = append(a.Contacts, strings.Join(asked.Contact, " ")), http.StatusCreated
	}
	a.write(w, status, map[string]any{"status": "valid"})
}

func (a *Authority) order(w http.ResponseWriter, m *message) {
	var asked struct{ Identifiers []struct{ Value string } }
	_ = json.Unmarshal(m.payload, &asked)
	o := &order{}
	for _, identifier := range asked.Identifiers {
		o.hosts, o.status = append(o.hosts, identifier.Value), append(o.status, "pending")
	}
	a.orders = append(a.orders, o)
	a.writeOrder(w, http.StatusCreated, len(a.orders)-1)
}

func (a *Authority) writeOrder(w http.ResponseWriter, status, number int) {
	o := a.orders[number]
	state := "ready"
	var authorizations []string
	for i, of := range o.status {
		authorizations = append(authorizations, a.URL("authorization", number, i))
		if of != "valid" {
			state = of
		}
	}
	if o.certificate != nil {
		state = "valid"
	}
	w.Header().Set("Location", a.URL("order", number))
	a.write(w, status, map[string]any{
		"status": state, "authorizations": authorizations, "finalize": a.URL("finalize", number), "certificate": a.URL("certificate", number),
	})
}

// number returns a part of the path.
func (m *message) number(name string) int {
	number, _ := strconv.Atoi(m.PathValue(name))
	return number
}

func (a *Authority) showOrder(w http.ResponseWriter, m *message) {
	a.writeOrder(w, http.StatusOK, m.number("order"))
}

func (a *Authority) showAuthorization(w http.ResponseWriter, m *message) {
	number, i := m.number("order"), m.number("host")
	o := a.orders[number]
	var challenges []map[string]any
	for _, kind := range a.Kinds {
		challenge := map[string]any{"type": kind, "url": a.URL("challenge", number, i, kind), "token": token(number, i), "status": o.status[i]}
		if o.status[i] == "invalid" {
			challenge["error"] = map[string]any{"type": problemPrefix + "unauthorized", "detail": "no answer", "status": 403}
		}
		challenges = append(challenges, challenge)
	}
	authorization := map[string]any{
		"status": o.status[i], "challenges": challenges, "identifier": map[string]any{"type": "dns", "value": o.hosts[i]},
	}
	if a.Spoil != nil {
		a.Spoil(authorization)
	}
	a.write(w, http.StatusOK, authorization)
}

func token(order, host int) string { return fmt.Sprintf("token-%d-%d", order, host) }

func (a *Authority) challenge(w http.ResponseWriter, m *message) {
	number, i, kind := m.number("order"), m.number("host"), m.PathValue("kind")
	o := a.orders[number]
	a.Probed = append(a.Probed, kind+" "+o.hosts[i])
	o.status[i] = "valid"
	if err := a.probe(kind, o.hosts[i], token(number, i), token(number, i)+"."+m.thumbprint); err != nil {
		o.status[i] = "invalid"
	}
	a.write(w, http.StatusOK, map[string]any{"type": kind, "url": a.URL("challenge", number, i, kind), "token": token(number, i), "status": o.status[i]})
}

func (a *Authority) finalize(w http.ResponseWriter, m *message) {
	var asked struct{ CSR string }
	_ = json.Unmarshal(m.payload, &asked)
	request, err := x509.ParseCertificateRequest(decode(asked.CSR))
	if err != nil {
		a.problem(w, http.StatusBadRequest, "badCSR", err.Error())
		return
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(a.Requests)), Subject: pkix.Name{CommonName: "test"}, DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.Life),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, a.key)
	if err != nil {
		a.t.Error(err)
	}
	a.orders[m.number("order")].certificate = der
	a.writeOrder(w, http.StatusOK, m.number("order"))
}

func (a *Authority) certificate(w http.ResponseWriter, m *message) {
	w.Header().Set("Replay-Nonce", "unused")
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: a.orders[m.number("order")].certificate})
}
