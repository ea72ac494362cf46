package compile

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// policyTarget is what a BackendTLSPolicy is for: a port of a Service, by its name. Without a
// name, it is the Service with all of its ports for which no other policy is.
type policyTarget struct {
	service types.NamespacedName
	port    string
}

// backendPolicy is a BackendTLSPolicy.
type backendPolicy struct {
	object  *gwv1.BackendTLSPolicy
	targets []policyTarget
	// tls is what the policy demands. It is nil if the policy cannot be used: then no request
	// may reach the backend.
	tls *routing.BackendTLS
	// accepted and resolved are what is wrong with the policy. Their reasons are those of its
	// conditions.
	accepted, resolved fault
}

// backendPolicies are the BackendTLSPolicies, and who uses what they are for.
type backendPolicies struct {
	// all are in the order of precedence.
	all []*backendPolicy
	// first has the policy that takes precedence for each target.
	first map[policyTarget]*backendPolicy
	// users are the Gateways whose routes have a port of a Service as their backend: by the
	// Service, by the name of the port. Only Services with a policy are in it.
	users map[types.NamespacedName]map[string]map[*gwv1.Gateway]bool
}

// policies reads the BackendTLSPolicies, and decides which one takes precedence for what.
func (c *compiler) policies() {
	c.backendTLS = backendPolicies{
		first: map[policyTarget]*backendPolicy{},
		users: map[types.NamespacedName]map[string]map[*gwv1.Gateway]bool{},
	}
	for _, object := range byAge(c.in.Policies) {
		policy := c.newPolicy(object)
		c.backendTLS.all = append(c.backendTLS.all, policy)
		for _, target := range policy.targets {
			if c.backendTLS.first[target] == nil {
				c.backendTLS.first[target] = policy
			}
			if c.backendTLS.users[target.service] == nil {
				c.backendTLS.users[target.service] = map[string]map[*gwv1.Gateway]bool{}
			}
		}
	}
}

// mayApply tells whether a policy is for a Service, or for one of its ports.
func (p *backendPolicies) mayApply(service types.NamespacedName) bool { return p.users[service] != nil }

// policyFor returns the policy for a port of a Service, or nil. A policy for the port comes
// before one for the Service.
func (p *backendPolicies) policyFor(target policyTarget) *backendPolicy {
	if policy := p.first[target]; policy != nil {
		return policy
	}
	return p.first[policyTarget{service: target.service}]
}

// use notes that routes of a Gateway have ports of Services as their backends.
func (p *backendPolicies) use(targets []policyTarget, gateway *gwv1.Gateway) {
	for _, target := range targets {
		ports := p.users[target.service]
		if ports[target.port] == nil {
			ports[target.port] = map[*gwv1.Gateway]bool{}
		}
		ports[target.port][gateway] = true
	}
}

// newPolicy reads a policy.
func (c *compiler) newPolicy(object *gwv1.BackendTLSPolicy) *backendPolicy {
	policy := &backendPolicy{object: object}
	for i := range object.Spec.TargetRefs {
		ref := &object.Spec.TargetRefs[i]
		if ref.Group != "" || ref.Kind != "Service" {
			continue // there is nothing of kedge's that could say so in the status
		}
		target := policyTarget{service: types.NamespacedName{Namespace: object.Namespace, Name: string(ref.Name)}}
		if ref.SectionName != nil {
			target.port = string(*ref.SectionName)
		}
		policy.targets = append(policy.targets, target)
	}

	validation := &object.Spec.Validation
	demands := &routing.BackendTLS{ServerName: string(validation.Hostname)}
	switch known := validation.WellKnownCACertificates; {
	case len(validation.CACertificateRefs) > 0:
		demands.Authorities, policy.resolved = c.policyAuthorities(object.Namespace, validation.CACertificateRefs)
		if demands.Authorities == "" {
			policy.accepted = faultOf(gwv1.BackendTLSPolicyReasonNoValidCACertificate,
				"no reference to a certificate of an authority can be used: %s", policy.resolved.message)
		}
	case known == nil || *known == "":
		policy.accepted = faultOf(gwv1.PolicyReasonInvalid, "the policy names no authority: set caCertificateRefs or wellKnownCACertificates")
	case *known != gwv1.WellKnownCACertificatesSystem:
		policy.accepted = faultOf(gwv1.PolicyReasonInvalid,
			"kedge knows no authorities %q: set wellKnownCACertificates to %s", *known, gwv1.WellKnownCACertificatesSystem)
	}
	for i := range validation.SubjectAltNames {
		switch name := &validation.SubjectAltNames[i]; name.Type {
		case gwv1.HostnameSubjectAltNameType:
			demands.Names = append(demands.Names, string(name.Hostname))
		case gwv1.URISubjectAltNameType:
			demands.URIs = append(demands.URIs, string(name.URI))
		default:
			policy.accepted = policy.accepted.and(faultOf(gwv1.PolicyReasonInvalid, "kedge knows no subjectAltName of the type %q", name.Type))
		}
	}
	if err := (&routing.Backend{Name: "backend", TLS: demands}).Check(); err != nil {
		policy.accepted = policy.accepted.and(faultOf(gwv1.PolicyReasonInvalid, "change spec.validation, which nodes cannot use: %v", err))
	}
	if !policy.accepted.is() {
		policy.tls = demands
	}
	return policy
}

// policyAuthorities returns the certificates of authorities, in PEM, that a policy refers to. It
// leaves out references that cannot be used, and says why.
func (c *compiler) policyAuthorities(namespace string, refs []gwv1.LocalObjectReference) (string, fault) {
	var found strings.Builder
	var wrong fault
	for i := range refs {
		ref := &refs[i]
		text, err := "", error(nil)
		name := types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}
		switch {
		case ref.Group == "" && ref.Kind == "ConfigMap":
			text, err = c.authoritiesIn(name)
		case ref.Group == "" && ref.Kind == "Secret":
			text, err = c.authoritiesInSecret(name)
		default:
			wrong = wrong.and(faultOf(gwv1.BackendTLSPolicyReasonInvalidKind,
				"%s cannot have the certificate of an authority: refer to a ConfigMap or a Secret", objectKind(string(ref.Group), string(ref.Kind))))
		}
		if err != nil {
			wrong = wrong.and(faultOf(gwv1.BackendTLSPolicyReasonInvalidCACertificateRef, "%v", err))
		}
		if found.Len()+len(text) > maxAuthorities {
			wrong = wrong.and(tooLarge("BackendTLSPolicy"))
			continue
		}
		found.WriteString(text)
	}
	return found.String(), wrong
}

// authoritiesInSecret returns the certificates of authorities, in PEM, that a Secret has. So
// cert-manager and others keep them, beside a key that stays there.
func (c *compiler) authoritiesInSecret(name types.NamespacedName) (string, error) {
	c.out.Secrets[name] = true
	secret := c.in.Secret(name.Namespace, name.Name)
	if secret == nil {
		return "", fmt.Errorf("there is no Secret %s", name)
	}
	return authoritiesOf("Secret "+name.String(), string(secret.Data[authorityKey]))
}
