package acme

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// ChallengesName is the Secret with the answers to challenges. All servers read it.
var ChallengesName = types.NamespacedName{Namespace: "kube-system", Name: "kedge-acme-challenges"}

// challengePrefix is that of the keys of the Secret that have a challenge.
const challengePrefix = "challenge."

// Challenge is the answer to a challenge. Either Token and Answer are set (HTTP-01), or
// Certificate is (TLS-ALPN-01).
type Challenge struct {
	// Host is the host that is proven.
	Host string `json:"host"`
	// Fronts are where the challenge arrives: NAMESPACE/NAME of Gateways, and "" for the front
	// that all share who have none of their own.
	Fronts      []string             `json:"fronts"`
	Token       string               `json:"token,omitempty"`
	Answer      string               `json:"answer,omitempty"`
	Certificate *routing.Certificate `json:"certificate,omitempty"`
}

// key returns the key of a challenge in the Secret.
func (c *Challenge) key() string {
	text := c.Host + "\n" + c.Token
	if c.Certificate != nil {
		text += c.Certificate.Chain
	}
	sum := sha256.Sum256([]byte(text))
	return challengePrefix + hex.EncodeToString(sum[:16])
}

// publish gives challenges to all servers.
func (m *Manager) publish(ctx context.Context, challenges []Challenge) error {
	data := map[string][]byte{}
	for i := range challenges {
		text, err := json.Marshal(&challenges[i])
		if err != nil {
			return fmt.Errorf("encode challenge: %w", err)
		}
		data[challenges[i].key()] = text
	}
	return m.patch(ctx, ChallengesName, data)
}

// retract takes challenges back.
func (m *Manager) retract(ctx context.Context, challenges []Challenge) error {
	data := map[string][]byte{}
	for i := range challenges {
		data[challenges[i].key()] = nil // removes it
	}
	return m.patch(ctx, ChallengesName, data)
}

// ReadChallenges returns the challenges in the Secret ChallengesName, which may be nil.
func ReadChallenges(secret *corev1.Secret) []Challenge {
	if secret == nil {
		return nil
	}
	var all []Challenge
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		var challenge Challenge
		if !strings.HasPrefix(key, challengePrefix) || json.Unmarshal(secret.Data[key], &challenge) != nil || challenge.Host == "" {
			continue
		}
		if (challenge.Token != "") != (challenge.Certificate != nil) {
			all = append(all, challenge)
		}
	}
	return all
}

// Merge returns fronts that also answer challenges. It adds the certificates of challenges to
// those of the nodes, and changes nothing else that it gets. A listener that serves the host
// answers. If there is none, Merge adds one, with its port and with the shared front if need
// be: without an answer there is no certificate, and without a certificate no listener. A
// listener that was added has no routes and no certificates of its own.
func Merge(challenges []Challenge, fronts []front.Front, certificates map[string]*routing.Certificate) []front.Front {
	fronts = slices.Clone(fronts)
	for i := range challenges {
		challenge := &challenges[i]
		if challenge.Certificate != nil {
			certificates[challenge.key()] = challenge.Certificate
		}
		for _, name := range challenge.Fronts {
			fronts = challenge.addTo(fronts, name)
		}
	}
	return fronts
}

// addTo adds a challenge to the front of a Gateway, or to the shared one.
func (c *Challenge) addTo(fronts []front.Front, gateway string) []front.Front {
	isShared := func(f front.Front) bool { return f.Gateway == nil && f.Name == front.Shared }
	at := slices.IndexFunc(fronts, func(f front.Front) bool {
		return gateway != "" && f.Gateway != nil && f.Gateway.Namespace+"/"+f.Gateway.Name == gateway
	})
	if at < 0 {
		at = slices.IndexFunc(fronts, isShared)
	}
	if at < 0 {
		fronts, at = append(fronts, front.Front{Name: front.Shared}), len(fronts)
	}
	of := &fronts[at]
	of.Ports = slices.Clone(of.Ports)
	number, protocol := uint16(80), routing.HTTP
	if c.Certificate != nil {
		number, protocol = 443, routing.HTTPS
	}
	i := slices.IndexFunc(of.Ports, func(p front.Port) bool { return p.Number == number && p.Transport == routing.TCP })
	if i < 0 {
		of.Ports, i = append(of.Ports, front.Port{Number: number, Transport: routing.TCP}), len(of.Ports)
	}
	port := &of.Ports[i]
	port.Listeners = slices.Clone(port.Listeners)
	served := false
	for j := range port.Listeners {
		listener := &port.Listeners[j]
		if listener.Protocol == routing.RawTCP || (listener.Protocol == routing.HTTP) != (protocol == routing.HTTP) {
			return fronts // the port speaks something else, so nobody can answer
		}
		// Beside those for HTTPS there may be listeners for TLS. They answer, too: one with the
		// exact host would take their connections.
		if covers(listener.Hostname, c.Host) {
			c.addToListener(&listener.Listener)
			served = true
		}
	}
	if !served {
		listener := routing.Listener{Name: of.Name.String() + "/acme", Protocol: protocol, Hostname: c.Host}
		c.addToListener(&listener)
		port.Listeners = append(port.Listeners, front.Listener{Listener: listener})
	}
	return fronts
}

// addToListener adds a challenge to a listener that nobody else has.
func (c *Challenge) addToListener(listener *routing.Listener) {
	if c.Certificate != nil {
		listener.ChallengeCertificates = with(listener.ChallengeCertificates, c.Host, c.key())
	} else {
		listener.Challenges = with(listener.Challenges, c.Token, c.Answer)
	}
}

// with returns a copy of a map with one value more.
func with(values map[string]string, key, value string) map[string]string {
	values = maps.Clone(values)
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value
	return values
}

// covers tells whether the host name of a listener is for a host.
func covers(pattern, host string) bool {
	if wildcard, found := strings.CutPrefix(pattern, "*"); found {
		return strings.HasSuffix(host, wildcard)
	}
	return pattern == "" || pattern == host
}
