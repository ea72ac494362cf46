package acme

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/mail"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// maxHosts is how many hosts a certificate may be for. The answers to all challenges are in
// one Secret.
const maxHosts = 50

// certificate is a certificate that objects of a namespace ask for.
type certificate struct {
	// secret is where the certificate is kept.
	secret types.NamespacedName
	// hosts are sorted.
	hosts []string
	// account is that of the oldest object.
	account
	// objects ask for the certificate.
	objects []*corev1.ObjectReference
	// fronts are where the challenges arrive: NAMESPACE/NAME of Gateways, and "" for the front
	// that Ingresses share.
	fronts []string
	// byTLS says that the first attempt uses TLS-ALPN-01, because a Gateway has no port 80.
	byTLS bool
}

// account is an account at an authority.
type account struct {
	// directory is the URL of the authority.
	directory string
	// email is empty if the user gave none.
	email string
}

// fault says why an object gets no certificate.
type fault struct {
	object  *corev1.ObjectReference
	message string
}

// request is what one object asks for.
type request struct {
	// object is what Events are about.
	object *corev1.ObjectReference
	meta   *metav1.ObjectMeta
	// gateway is NAMESPACE/NAME of the Gateway, or empty for an Ingress.
	gateway string
	// own says that the Gateway has addresses of its own.
	own bool
	// byTLS is that of the certificates.
	byTLS bool
	// secrets are the hosts of each Secret, by its name.
	secrets map[string][]string
}

// planner collects what objects ask for.
type planner struct {
	standard string
	owners   *hosts.Owners
	bySecret map[types.NamespacedName]*certificate
	wanted   []*certificate
	faults   []fault
}

// wantedBy returns the certificates that objects ask for, and why others are refused. standard
// is the directory of the cluster's authority.
func wantedBy(o *Objects, standard string) ([]*certificate, []fault) {
	var requests []*request
	for _, ingress := range o.Ingresses {
		if Asks(ingress.Annotations) {
			object := referenceTo(netv1.SchemeGroupVersion.String(), "Ingress", &ingress.ObjectMeta)
			requests = append(requests, &request{object: object, meta: &ingress.ObjectMeta, secrets: ofIngress(ingress)})
		}
	}
	for _, gateway := range o.Gateways {
		if name := gateway.Namespace + "/" + gateway.Name; Asks(gateway.Annotations) {
			requests = append(requests, &request{
				object: referenceTo(gwv1.GroupVersion.String(), "Gateway", &gateway.ObjectMeta), meta: &gateway.ObjectMeta,
				gateway: name, own: o.OwnFronts[name], byTLS: !hasPlainPort(gateway), secrets: ofGateway(gateway),
			})
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	slices.SortFunc(requests, func(a, b *request) int {
		return cmp.Or(a.meta.CreationTimestamp.Compare(b.meta.CreationTimestamp.Time), cmp.Compare(a.object.Kind, b.object.Kind),
			cmp.Compare(a.meta.Namespace, b.meta.Namespace), cmp.Compare(a.meta.Name, b.meta.Name))
	})
	p := &planner{standard: standard, owners: o.Owners, bySecret: map[types.NamespacedName]*certificate{}}
	for _, r := range requests {
		of, err := accountOf(r.meta.Annotations, standard)
		if err != nil {
			p.faults = append(p.faults, fault{r.object, "kedge gets no certificate: " + err.Error()})
			continue
		}
		if len(r.secrets) == 0 {
			p.faults = append(p.faults, fault{r.object, "kedge gets no certificate, because nothing names a Secret for it: add hosts and secretName in spec.tls of the Ingress, " +
				"or hostname and tls.certificateRefs in a listener of the Gateway that speaks HTTPS"})
		}
		for _, secret := range slices.Sorted(maps.Keys(r.secrets)) {
			if err := p.add(r, of, secret); err != nil {
				p.faults = append(p.faults, fault{r.object, fmt.Sprintf("kedge gets no certificate for the Secret %q: %s", secret, err)})
			}
		}
	}
	return p.wanted, p.faults
}

// add adds the hosts of a Secret. It fails if the object cannot have a certificate for them.
func (p *planner) add(r *request, of account, secret string) error {
	hosts := sortedHosts(r.secrets[secret])
	for _, host := range hosts {
		if err := checkHost(host); err != nil {
			return err
		}
		if refusal := p.owners.Refusal(r.meta.Namespace, host); refusal != nil && !r.own {
			return errors.New(refusal.Loser())
		}
	}
	at := types.NamespacedName{Namespace: r.meta.Namespace, Name: secret}
	c := p.bySecret[at]
	if c == nil {
		c = &certificate{secret: at, account: of}
	}
	together := sortedHosts(slices.Concat(c.hosts, hosts))
	switch {
	case len(together) == 0:
		return errors.New("no host is named for it: add the hosts to spec.tls, or to the listeners")
	case len(together) > maxHosts:
		return fmt.Errorf("it is for %d hosts, and may be for %d: use several Secrets", len(together), maxHosts)
	}
	if p.bySecret[at] == nil {
		p.bySecret[at], p.wanted = c, append(p.wanted, c)
	}
	c.hosts, c.objects, c.byTLS = together, append(c.objects, r.object), c.byTLS || r.byTLS
	if !slices.Contains(c.fronts, r.gateway) {
		c.fronts = append(c.fronts, r.gateway)
	}
	return nil
}

// referenceTo returns a reference to an object, whose own kind may be empty in a cache.
func referenceTo(version, kind string, meta *metav1.ObjectMeta) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion}
}

// Asks tells whether the annotations of an object ask for certificates.
func Asks(annotations map[string]string) bool {
	value := annotations[AnnotationACME]
	return value != "" && value != "false"
}

// ofIngress returns the hosts of each Secret of an Ingress.
func ofIngress(ingress *netv1.Ingress) map[string][]string {
	secrets := map[string][]string{}
	for _, entry := range ingress.Spec.TLS {
		if entry.SecretName == "" {
			continue // package ingress tells it
		}
		hosts := entry.Hosts
		if len(hosts) == 0 {
			for _, rule := range ingress.Spec.Rules {
				if rule.Host != "" {
					hosts = append(hosts, rule.Host)
				}
			}
		}
		secrets[entry.SecretName] = slices.Concat(secrets[entry.SecretName], hosts)
	}
	return secrets
}

// ofGateway returns the hosts of each Secret of a Gateway's own namespace.
func ofGateway(gateway *gwv1.Gateway) map[string][]string {
	secrets := map[string][]string{}
	for i := range gateway.Spec.Listeners {
		listener := &gateway.Spec.Listeners[i]
		if listener.Protocol != gwv1.HTTPSProtocolType || listener.Hostname == nil || *listener.Hostname == "" || listener.TLS == nil {
			continue
		}
		for i := range listener.TLS.CertificateRefs {
			if ref := &listener.TLS.CertificateRefs[i]; isOwnSecret(gateway, ref) {
				secrets[string(ref.Name)] = append(secrets[string(ref.Name)], string(*listener.Hostname))
			}
		}
	}
	return secrets
}

// isOwnSecret tells whether a Gateway refers to a Secret of its own namespace.
func isOwnSecret(gateway *gwv1.Gateway, ref *gwv1.SecretObjectReference) bool {
	return (ref.Group == nil || *ref.Group == "") && (ref.Kind == nil || *ref.Kind == "Secret") &&
		(ref.Namespace == nil || string(*ref.Namespace) == gateway.Namespace)
}

// Certifies tells whether kedge gets the certificate that one of a Gateway's own listeners
// refers to. Whether another namespace has the host already is not looked at.
func Certifies(gateway *gwv1.Gateway, listener *gwv1.Listener, ref *gwv1.SecretObjectReference) bool {
	return Asks(gateway.Annotations) && listener.Protocol == gwv1.HTTPSProtocolType &&
		listener.Hostname != nil && checkHost(string(*listener.Hostname)) == nil && isOwnSecret(gateway, ref)
}

// hasPlainPort tells whether a Gateway has port 80 for HTTP.
func hasPlainPort(gateway *gwv1.Gateway) bool {
	return slices.ContainsFunc(gateway.Spec.Listeners, func(l gwv1.Listener) bool {
		return l.Protocol == gwv1.HTTPProtocolType && l.Port == 80
	})
}

// accountOf reads the annotations of an object.
func accountOf(annotations map[string]string, standard string) (account, error) {
	of := account{directory: standard}
	if value := annotations[AnnotationACME]; value != "true" {
		if err := checkEmail(value); err != nil {
			return account{}, fmt.Errorf("the annotation %s: %w", AnnotationACME, err)
		}
		of.email = value
	}
	if value := annotations[AnnotationServer]; value != "" && value != standard {
		if err := checkDirectory(value); err != nil {
			return account{}, fmt.Errorf("the annotation %s: %w", AnnotationServer, err)
		}
		of.directory = value
	}
	return of, nil
}

// checkEmail tells whether a value can be the contact of an account: one address, without
// what has a meaning in a mailto URL (RFC 8555, section 7.3).
func checkEmail(value string) error {
	parsed, err := mail.ParseAddress(value)
	if err != nil || parsed.Address != value || len(value) > 254 || strings.ContainsAny(value, "?,%\"& ") || !isPrintable(value) {
		return fmt.Errorf("%q is neither true nor an e-mail address such as admin@example.com", cut(value, maxValue))
	}
	return nil
}

// maxURL is how long the URL of a directory may be.
const maxURL = 256

// checkDirectory tells whether a value can be the directory of an authority.
func checkDirectory(value string) error {
	parsed, err := url.Parse(value)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" || parsed.User != nil || parsed.Fragment != "" || len(value) > maxURL || !isPrintable(value) {
		return fmt.Errorf("%q is not the URL of a directory: write one that begins with https://", cut(value, maxValue))
	}
	return nil
}

// checkHost tells whether an authority can certify a host by asking it.
func checkHost(host string) error {
	if strings.HasPrefix(host, "*.") {
		return fmt.Errorf("%q is a wildcard, which authorities certify only by DNS-01, and kedge changes no DNS. "+
			"Name each host, or use cert-manager for wildcards", cut(host, maxValue))
	}
	if faults := validation.IsDNS1123Subdomain(host); len(faults) > 0 || !strings.Contains(host, ".") {
		return fmt.Errorf("%q is not a full host name: write one such as www.example.com", cut(host, maxValue))
	}
	return nil
}

// isPrintable tells whether a text is ASCII without control characters.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// sortedHosts returns host names, each once and sorted.
func sortedHosts(hosts []string) []string {
	hosts = slices.Clone(hosts)
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
