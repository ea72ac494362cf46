package ingress

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
)

// secureHost is a host of HTTPS. Its listener has all certificates that Ingresses of the
// namespace have for it, oldest first.
type secureHost struct {
	// The host may be a wildcard, or "" for all hosts.
	tenantHost
	certificates []string
}

// host returns the host of HTTPS with a name, and adds it if need be.
func (c *compiler) host(at tenantHost) *secureHost {
	host := c.secured[at]
	if host == nil {
		host = &secureHost{tenantHost: at}
		c.secured[at] = host
		c.hosts = append(c.hosts, host)
	}
	return host
}

// certificates reads spec.tls of an Ingress.
func (c *compiler) certificates(e *entry) {
	for i := range e.Spec.TLS {
		entry := &e.Spec.TLS[i]
		hosts := slices.DeleteFunc(slices.Clone(entry.Hosts), func(host string) bool { return !c.mayServe(e, host) })
		if len(entry.Hosts) == 0 {
			hosts = e.hosts
		}
		if len(hosts) == 0 {
			continue // all are another namespace's
		}
		name := c.certificate(e, entry, hosts)
		for _, text := range hosts {
			host := c.host(tenantHost{c.tenant(e), text})
			if name != "" && !slices.Contains(host.certificates, name) {
				host.certificates = append(host.certificates, name)
			}
		}
	}
}

// certificate returns the name of the certificate of an entry of spec.tls, or "" if there is
// none that can be used.
func (c *compiler) certificate(e *entry, entry *netv1.IngressTLS, hosts []string) string {
	without := fmt.Sprintf("HTTPS of [%s] is not served", clip(strings.Join(hosts, " ")))
	if entry.SecretName == "" {
		c.fault(e, ReasonBadCertificate, "%s, because spec.tls has no secretName: set it, and add the annotation %s: \"true\" "+
			"if kedge shall get the certificate", without, acme.AnnotationACME)
		return ""
	}
	at := types.NamespacedName{Namespace: e.Namespace, Name: entry.SecretName}
	c.out.Secrets[at] = true
	secret := c.in.Secret(at.Namespace, at.Name)
	if secret == nil {
		// If kedge gets the certificate, package acme tells how far it is.
		if !acme.Asks(e.Annotations) {
			c.fault(e, ReasonBadCertificate, "%s, because the Secret %q does not exist: create it, or add the annotation %s: \"true\", "+
				"so that kedge gets a certificate", without, at.Name, acme.AnnotationACME)
		}
		return ""
	}
	certificate, err := c.readCertificate(secret)
	if err != nil {
		c.fault(e, ReasonBadCertificate, "%s, because the Secret %q has no certificate that can be used: %s", without, at.Name, clip(err.Error()))
		return ""
	}
	for _, host := range hosts {
		if asked := strings.Replace(host, "*", "any", 1); asked != "" && certificate.Leaf.VerifyHostname(asked) != nil {
			c.fault(e, ReasonBadCertificate, "The certificate in the Secret %q is not for the host %q: clients will refuse it", at.Name, host)
		}
	}
	name := "Secret/" + at.String()
	c.out.State.Certificates[name] = certificate.Certificate
	return name
}

// readCertificate reads the certificate and the key of a Secret.
func (c *compiler) readCertificate(secret *corev1.Secret) (*certificates.Certificate, error) {
	if len(secret.Data[corev1.TLSCertKey]) == 0 || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0 {
		return nil, fmt.Errorf("it has no %s or no %s", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return c.in.Certificate(secret)
}

// redirects finds Ingresses that send clients to HTTPS where there is none.
func (c *compiler) redirects() {
	for _, e := range c.entries {
		if !e.settings.redirect || e.settings.closed {
			continue
		}
		for _, host := range e.hosts {
			_, parent, _ := strings.Cut(host, ".")
			secured := slices.ContainsFunc([]string{host, "*." + parent, ""}, func(name string) bool {
				return c.secured[tenantHost{c.tenant(e), name}] != nil
			})
			if !secured {
				c.fault(e, ReasonBadCertificate, "Requests to the host %q are redirected to HTTPS, which no Ingress serves: add the host to spec.tls", host)
			}
		}
	}
}
