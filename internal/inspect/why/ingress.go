package why

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/foreigntext"
)

// ingressWay is how a request reaches a Service of an Ingress.
var ingressWay = []stage[*networkingv1.Ingress]{
	{name: "class", rules: []rule[*networkingv1.Ingress]{
		{"ingress-class-missing", func(w *world, i *networkingv1.Ingress) *finding {
			if len(i.Status.LoadBalancer.Ingress) > 0 {
				return nil
			}
			api := w.Kubernetes.NetworkingV1().IngressClasses()
			if name := ingressClass(i); name != "" {
				if !classMissing(w, api, "IngressClass", name) {
					return nil
				}
				return found("correct spec.ingressClassName of the Ingress. "+classNames(w, api, "IngressClass"), "there is no IngressClass %s, so no controller serves the Ingress", name)
			}
			classes, ok := list(w, api, "IngressClasses", "")
			switch {
			case !ok: // a default class would be in the object by now
				return found("set spec.ingressClassName of the Ingress", "the Ingress names no IngressClass, and no controller has given it an address")
			case slices.ContainsFunc(classes.Items, func(c networkingv1.IngressClass) bool {
				return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
			}):
				return nil
			}
			return found("set spec.ingressClassName of the Ingress. "+classNames(w, api, "IngressClass"), "the Ingress names no IngressClass, and none is the default, so no controller serves it")
		}},
	}, passed: func(_ *world, i *networkingv1.Ingress) string {
		if name := ingressClass(i); name != "" {
			return "its class is " + name
		}
		return "the default class serves it"
	}},
	{name: "backends", rules: []rule[*networkingv1.Ingress]{
		{"backend-missing", eachBackend(func(w *world, i *networkingv1.Ingress, b *networkingv1.IngressServiceBackend) *finding {
			if _, ok := service(w, i.Namespace, b.Name); ok || w.isHidden("Services") {
				return nil
			}
			return found(fmt.Sprintf("create the Service, or correct its name: kubectl -n %s get services", i.Namespace), "the Ingress sends to the Service %s, and namespace %s has none of that name", b.Name, i.Namespace)
		})},
		{"backend-port", eachBackend(func(w *world, i *networkingv1.Ingress, b *networkingv1.IngressServiceBackend) *finding {
			s, ok := service(w, i.Namespace, b.Name)
			if !ok {
				return nil
			}
			var has []string
			for _, port := range s.Spec.Ports {
				if port.Port == b.Port.Number && b.Port.Name == "" || port.Name == b.Port.Name && b.Port.Name != "" {
					return nil
				}
				has = append(has, portText(port.Name, port.Port))
			}
			wanted := b.Port.Name
			if wanted == "" {
				wanted = fmt.Sprint(b.Port.Number)
			}
			return found(fmt.Sprintf("correct the port of the backend: kubectl -n %s edit ingress %s", i.Namespace, i.Name), "the Ingress sends to port %s of the Service %s, which has the ports %s", wanted, b.Name, few(has))
		})},
		{"backend-unwell", eachBackend(func(w *world, i *networkingv1.Ingress, b *networkingv1.IngressServiceBackend) *finding {
			s, ok := service(w, i.Namespace, b.Name)
			if !ok {
				return nil
			}
			f := failed(walk(w, s, podsOfService))
			if f != nil {
				f.says = fmt.Sprintf("the Service %s has no endpoint: %s", b.Name, f.says)
			}
			return f
		})},
	}, passed: func(*world, *networkingv1.Ingress) string { return "its Services have endpoints" }},
	{name: "certificate", rules: certificates, passed: func(w *world, i *networkingv1.Ingress) string {
		switch {
		case len(i.Spec.TLS) == 0:
			return "it asks for none"
		case w.isHidden("Secrets"):
			return "they are not known, because you may not read Secrets"
		case lacksCertificate(w, i):
			return ""
		}
		return "the certificates are there, and are valid for its hosts"
	}, waiting: "the certificate has not been obtained yet"},
	{name: "address", rules: []rule[*networkingv1.Ingress]{
		{"ingress-refused", func(w *world, i *networkingv1.Ingress) *finding {
			// kedge writes an Event once for each fault. It does not say when the fault is over, so an Ingress with an address counts as well.
			e, answers := w.warning(i), len(i.Status.LoadBalancer.Ingress) > 0
			if e == nil || answers && (w.Now().Sub(events.Seen(e)) > 10*time.Minute || strings.HasPrefix(e.Message, "No address serves")) {
				return nil
			}
			f := found("see docs/gateway.md", "a controller warned %s ago: %s", since(w, events.Seen(e)), plain(e.Message))
			f.mild = answers
			return f
		}},
	}, passed: func(_ *world, i *networkingv1.Ingress) string {
		var all []string
		for _, a := range i.Status.LoadBalancer.Ingress {
			all = append(all, a.IP+a.Hostname)
		}
		if len(all) == 0 {
			return ""
		}
		return "it answers at " + few(all)
	}, waiting: "no controller has given it an address yet"},
}

// certificates says why TLS fails.
var certificates = []rule[*networkingv1.Ingress]{
	{"certificate-missing", eachCertificate(func(w *world, i *networkingv1.Ingress, t networkingv1.IngressTLS, s *corev1.Secret) *finding {
		if s != nil || w.isHidden("Secrets") || asksForCertificate(i) {
			return nil
		}
		return found(fmt.Sprintf("kubectl -n %s create secret tls %s --cert=FILE --key=FILE", i.Namespace, foreigntext.Argument(t.SecretName)), "the Ingress needs the Secret %s for TLS, and namespace %s has none of that name", t.SecretName, i.Namespace)
	})},
	{"certificate-not-obtained", eachCertificate(func(w *world, i *networkingv1.Ingress, t networkingv1.IngressTLS, s *corev1.Secret) *finding {
		e := w.warning(i)
		if s != nil || w.isHidden("Secrets") || !asksForCertificate(i) || e == nil {
			return nil
		}
		return found("see docs/gateway.md, Certificates", "the Secret %s with the certificate does not exist yet: %s", t.SecretName, plain(e.Message))
	})},
	{"certificate-type", eachCertificate(func(w *world, i *networkingv1.Ingress, _ networkingv1.IngressTLS, s *corev1.Secret) *finding {
		if s == nil || len(s.Data[corev1.TLSCertKey]) > 0 && len(s.Data[corev1.TLSPrivateKeyKey]) > 0 {
			return nil
		}
		return found(fmt.Sprintf("replace it: kubectl -n %[1]s delete secret %[2]s; kubectl -n %[1]s create secret tls %[2]s --cert=FILE --key=FILE", i.Namespace, s.Name), "the Secret %s has no certificate for TLS: it needs the keys %s and %s", s.Name, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	})},
	{"certificate-unreadable", eachCertificate(func(_ *world, i *networkingv1.Ingress, _ networkingv1.IngressTLS, s *corev1.Secret) *finding {
		if s == nil {
			return nil
		}
		if _, err := certificateOf(s); err != nil {
			return found("put the certificate into the Secret as PEM (-----BEGIN CERTIFICATE-----)", "the certificate in the Secret %s cannot be read: %v", s.Name, err)
		}
		return nil
	})},
	{"certificate-expired", eachCertificate(func(w *world, _ *networkingv1.Ingress, _ networkingv1.IngressTLS, s *corev1.Secret) *finding {
		c := readableCertificate(s)
		switch {
		case c == nil:
			return nil
		case w.Now().After(c.NotAfter):
			return found(fmt.Sprintf("put a new certificate into the Secret: kubectl -n %s create secret tls %s --cert=FILE --key=FILE --dry-run=client -o yaml | kubectl apply -f -", s.Namespace, s.Name), "the certificate in the Secret %s expired %s ago", s.Name, since(w, c.NotAfter))
		case w.Now().Before(c.NotBefore):
			return found("check the clock of this machine, and of the machine that made the certificate: date -u", "the certificate in the Secret %s is not valid before %s", s.Name, c.NotBefore.UTC().Format(time.RFC3339))
		}
		return nil
	})},
	{"certificate-names", eachCertificate(func(_ *world, _ *networkingv1.Ingress, t networkingv1.IngressTLS, s *corev1.Secret) *finding {
		c := readableCertificate(s)
		if c == nil {
			return nil
		}
		for _, host := range t.Hosts {
			if err := c.VerifyHostname(strings.Replace(host, "*", "any", 1)); err != nil {
				return found("use a certificate for this name, or correct spec.tls[].hosts", "the certificate in the Secret %s is not for %s. It is for %s", s.Name, host, cmp.Or(few(c.DNSNames), "none"))
			}
		}
		return nil
	})},
}

// asksForCertificate tells whether another program makes the certificates of an Ingress: kedge, or cert-manager.
func asksForCertificate(i *networkingv1.Ingress) bool {
	acme := i.Annotations["gateway.kedge.dev/acme"]
	return acme != "" && acme != "false" || i.Annotations["cert-manager.io/issuer"] != "" || i.Annotations["cert-manager.io/cluster-issuer"] != ""
}

// lacksCertificate tells whether a Secret of an Ingress is not there.
func lacksCertificate(w *world, i *networkingv1.Ingress) bool {
	return eachCertificate(func(_ *world, _ *networkingv1.Ingress, _ networkingv1.IngressTLS, s *corev1.Secret) *finding {
		if s != nil {
			return nil
		}
		return &finding{}
	})(w, i) != nil
}

// eachCertificate applies a rule to the certificates of an Ingress, up to the first finding. The Secret is nil if it is not there.
func eachCertificate(find func(*world, *networkingv1.Ingress, networkingv1.IngressTLS, *corev1.Secret) *finding) func(*world, *networkingv1.Ingress) *finding {
	return func(w *world, i *networkingv1.Ingress) *finding {
		for _, t := range i.Spec.TLS {
			if t.SecretName == "" {
				continue
			}
			s, ok := get(w, w.Kubernetes.CoreV1().Secrets(i.Namespace), "Secrets", i.Namespace, t.SecretName)
			if !ok {
				s = nil
			}
			if f := find(w, i, t, s); f != nil {
				return f
			}
		}
		return nil
	}
}

// readableCertificate returns the certificate of a Secret, or nil.
func readableCertificate(s *corev1.Secret) *x509.Certificate {
	if s == nil {
		return nil
	}
	c, _ := certificateOf(s)
	return c
}

// certificateOf returns the first certificate of a Secret.
func certificateOf(s *corev1.Secret) (*x509.Certificate, error) {
	block, _ := pem.Decode(s.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", corev1.TLSCertKey)
	}
	return x509.ParseCertificate(block.Bytes)
}

// eachBackend applies a rule to the Services of an Ingress, up to the first finding.
func eachBackend(find func(*world, *networkingv1.Ingress, *networkingv1.IngressServiceBackend) *finding) func(*world, *networkingv1.Ingress) *finding {
	return func(w *world, i *networkingv1.Ingress) *finding {
		var all []*networkingv1.IngressServiceBackend
		if b := i.Spec.DefaultBackend; b != nil && b.Service != nil {
			all = append(all, b.Service)
		}
		for _, r := range i.Spec.Rules {
			if r.HTTP == nil {
				continue
			}
			for _, path := range r.HTTP.Paths {
				if path.Backend.Service != nil {
					all = append(all, path.Backend.Service)
				}
			}
		}
		for _, b := range all {
			if f := find(w, i, b); f != nil {
				return f
			}
		}
		return nil
	}
}

// ingressClass returns the class that an Ingress names, or "".
func ingressClass(i *networkingv1.Ingress) string {
	if i.Spec.IngressClassName != nil {
		return *i.Spec.IngressClassName
	}
	return i.Annotations["kubernetes.io/ingress.class"]
}

func service(w *world, namespace, name string) (*corev1.Service, bool) {
	return get(w, w.Kubernetes.CoreV1().Services(namespace), "Services", namespace, name)
}
