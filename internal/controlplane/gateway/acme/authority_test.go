package acme

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
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// authority is a small authority that speaks ACME (RFC 8555). It checks signatures and nonces.
type authority struct {
	t      *testing.T
	server *httptest.Server
	key    *ecdsa.PrivateKey
	// probe looks for the answer to a challenge, as an authority does from outside.
	probe func(kind, host, token, keyAuthorization string) error
	// kinds are the challenges that it offers.
	kinds []string
	// life is how long certificates are valid.
	life time.Duration
	// limited says that there were too many requests, and external that accounts are made
	// elsewhere.
	limited, external bool
	// spoil changes what it says about an authorization.
	spoil func(authorization map[string]any)

	mu       sync.Mutex
	requests int
	nonces   map[string]bool
	accounts []*ecdsa.PublicKey
	contacts []string
	orders   []*order
	probed   []string
}

// order is an order. Its authorizations are those of its hosts.
type order struct {
	hosts       []string
	status      []string
	certificate []byte
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, kinds: []string{"dns-01", http01, tlsALPN01}, life: 90 * 24 * time.Hour, nonces: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, _ *http.Request) {
		a.write(w, http.StatusOK, map[string]any{
			"newNonce": a.url("nonce"), "newAccount": a.url("account"), "newOrder": a.url("order"),
			"meta": map[string]any{"termsOfService": "https://example.com", "externalAccountRequired": a.external},
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
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests++
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(a.server.Close)
	return a
}

func (a *authority) url(parts ...any) string {
	url := a.server.URL
	for _, part := range parts {
		url += "/" + fmt.Sprint(part)
	}
	return url
}

// roots returns the authorities that clients verify the server with.
func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.server.Certificate())
	return pool
}

// write answers with JSON and a nonce.
func (a *authority) write(w http.ResponseWriter, status int, value any) {
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
func (a *authority) problem(w http.ResponseWriter, status int, kind, detail string) {
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
func (a *authority) signed(handle func(http.ResponseWriter, *message)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m := &message{Request: r}
		if err := a.verify(m); err != nil {
			a.t.Errorf("%s: %s", r.URL, err)
			a.problem(w, http.StatusBadRequest, "malformed", err.Error())
			return
		}
		if a.limited {
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
func (a *authority) verify(m *message) error {
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
	if !a.nonces[head.Nonce] || head.URL != a.server.URL+m.URL.Path {
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
		number, err := strconv.Atoi(strings.TrimPrefix(head.Kid, a.url("account")+"/"))
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

func (a *authority) account(w http.ResponseWriter, m *message) {
	var asked struct {
		Contact              []string
		TermsOfServiceAgreed bool
	}
	_ = json.Unmarshal(m.payload, &asked)
	w.Header().Set("Location", a.url("account", m.account))
	status := http.StatusOK
	if len(a.contacts) <= m.account {
		a.contacts, status = append(a.contacts, strings.Join(asked.Contact, " ")), http.StatusCreated
	}
	a.write(w, status, map[string]any{"status": "valid"})
}

func (a *authority) order(w http.ResponseWriter, m *message) {
	var asked struct{ Identifiers []struct{ Value string } }
	_ = json.Unmarshal(m.payload, &asked)
	o := &order{}
	for _, identifier := range asked.Identifiers {
		o.hosts, o.status = append(o.hosts, identifier.Value), append(o.status, "pending")
	}
	a.orders = append(a.orders, o)
	a.writeOrder(w, http.StatusCreated, len(a.orders)-1)
}

func (a *authority) writeOrder(w http.ResponseWriter, status, number int) {
	o := a.orders[number]
	state := "ready"
	var authorizations []string
	for i, of := range o.status {
		authorizations = append(authorizations, a.url("authorization", number, i))
		if of != "valid" {
			state = of
		}
	}
	if o.certificate != nil {
		state = "valid"
	}
	w.Header().Set("Location", a.url("order", number))
	a.write(w, status, map[string]any{
		"status": state, "authorizations": authorizations, "finalize": a.url("finalize", number), "certificate": a.url("certificate", number),
	})
}

// number returns a part of the path.
func (m *message) number(name string) int {
	number, _ := strconv.Atoi(m.PathValue(name))
	return number
}

func (a *authority) showOrder(w http.ResponseWriter, m *message) {
	a.writeOrder(w, http.StatusOK, m.number("order"))
}

func (a *authority) showAuthorization(w http.ResponseWriter, m *message) {
	number, i := m.number("order"), m.number("host")
	o := a.orders[number]
	var challenges []map[string]any
	for _, kind := range a.kinds {
		challenge := map[string]any{"type": kind, "url": a.url("challenge", number, i, kind), "token": token(number, i), "status": o.status[i]}
		if o.status[i] == "invalid" {
			challenge["error"] = map[string]any{"type": problemPrefix + "unauthorized", "detail": "no answer", "status": 403}
		}
		challenges = append(challenges, challenge)
	}
	authorization := map[string]any{
		"status": o.status[i], "challenges": challenges, "identifier": map[string]any{"type": "dns", "value": o.hosts[i]},
	}
	if a.spoil != nil {
		a.spoil(authorization)
	}
	a.write(w, http.StatusOK, authorization)
}

func token(order, host int) string { return fmt.Sprintf("token-%d-%d", order, host) }

func (a *authority) challenge(w http.ResponseWriter, m *message) {
	number, i, kind := m.number("order"), m.number("host"), m.PathValue("kind")
	o := a.orders[number]
	a.probed = append(a.probed, kind+" "+o.hosts[i])
	o.status[i] = "valid"
	if err := a.probe(kind, o.hosts[i], token(number, i), token(number, i)+"."+m.thumbprint); err != nil {
		o.status[i] = "invalid"
	}
	a.write(w, http.StatusOK, map[string]any{"type": kind, "url": a.url("challenge", number, i, kind), "token": token(number, i), "status": o.status[i]})
}

func (a *authority) finalize(w http.ResponseWriter, m *message) {
	var asked struct{ CSR string }
	_ = json.Unmarshal(m.payload, &asked)
	request, err := x509.ParseCertificateRequest(decode(asked.CSR))
	if err != nil {
		a.problem(w, http.StatusBadRequest, "badCSR", err.Error())
		return
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(a.requests)), Subject: pkix.Name{CommonName: "test"}, DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.life),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, a.key)
	if err != nil {
		a.t.Error(err)
	}
	a.orders[m.number("order")].certificate = der
	a.writeOrder(w, http.StatusOK, m.number("order"))
}

func (a *authority) certificate(w http.ResponseWriter, m *message) {
	w.Header().Set("Replay-Nonce", "unused")
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: a.orders[m.number("order")].certificate})
}
