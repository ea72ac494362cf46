package compile

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

const (
	// authorityKey is the key of a ConfigMap that has certificates of authorities.
	authorityKey = "ca.crt"
	// maxAuthorities is how many bytes the certificates of authorities may have together. Each
	// listener and each backend has a copy of them on its way to the nodes.
	maxAuthorities = 256 << 10
)

// referrer is the object that refers to others: the one that a ReferenceGrant names.
type referrer struct{ kind, namespace string }

// fault is why something cannot be used. Its zero value means that there is nothing wrong.
type fault struct{ reason, message string }

func faultOf[R ~string](reason R, format string, arguments ...any) fault {
	return fault{string(reason), fmt.Sprintf(format, arguments...)}
}

func (f fault) is() bool { return f.reason != "" }

// and adds another fault. The reason of the first one stays.
func (f fault) and(other fault) fault {
	if !f.is() {
		return other
	}
	if other.is() && !strings.Contains(f.message, other.message) {
		f.message += "; " + other.message
	}
	return f
}

// checked is a Secret of which it is known whether it has a certificate with its key.
type checked struct {
	certificate *routing.Certificate
	err         error
}

// certificate returns the name of the certificate that a reference means. The reason of the
// fault is RefNotPermitted, or else invalid.
func (c *compiler) certificate(from referrer, ref *gwv1.SecretObjectReference, invalid string) (string, fault) {
	group, kind := string(ptr.Deref(ref.Group, "")), string(ptr.Deref(ref.Kind, "Secret"))
	if group != "" || kind != "Secret" {
		return "", faultOf(invalid, "%s cannot have a certificate: refer to a Secret", objectKind(group, kind))
	}
	name := types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gwv1.Namespace(from.namespace))), Name: string(ref.Name)}
	if !c.granted(gwv1.GroupName, from.kind, from.namespace, group, kind, name.Namespace, name.Name) {
		return "", notPermitted(from, kind, name)
	}
	c.out.Secrets[name] = true
	found, known := c.checked[name]
	if !known {
		found = c.checkSecret(c.in.Secret(name.Namespace, name.Name), name)
		c.checked[name] = found
	}
	if found.err != nil {
		return "", faultOf(invalid, "%v", found.err)
	}
	return name.String(), fault{}
}

// checkSecret tells whether a Secret has a certificate with its key.
func (c *compiler) checkSecret(secret *corev1.Secret, name types.NamespacedName) checked {
	if secret == nil {
		return checked{err: fmt.Errorf("there is no Secret %s", name)}
	}
	if len(secret.Data[corev1.TLSCertKey]) == 0 || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0 {
		return checked{err: fmt.Errorf("the Secret %s has no %s or no %s", name, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)}
	}
	found, err := c.in.Certificate(secret)
	if err != nil {
		return checked{err: fmt.Errorf("read the certificate of Secret %s: %w", name, err)}
	}
	return checked{certificate: found.Certificate}
}

// serve gives a certificate to the nodes.
func (c *compiler) serve(certificate string) {
	namespace, name, _ := strings.Cut(certificate, "/")
	if found := c.checked[types.NamespacedName{Namespace: namespace, Name: name}]; found.certificate != nil {
		c.out.State.Certificates[certificate] = found.certificate
	}
}

// authorities returns the certificates of authorities, in PEM, that references mean. It leaves
// out references that cannot be used, and says why.
func (c *compiler) authorities(from referrer, refs []gwv1.ObjectReference) (string, fault) {
	var found strings.Builder
	var faults fault
	for i := range refs {
		ref := &refs[i]
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			faults = faults.and(faultOf(gwv1.ListenerReasonInvalidCACertificateKind,
				"%s cannot have the certificate of an authority: refer to a ConfigMap", objectKind(string(ref.Group), string(ref.Kind))))
			continue
		}
		name := types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gwv1.Namespace(from.namespace))), Name: string(ref.Name)}
		if !c.granted(gwv1.GroupName, from.kind, from.namespace, "", "ConfigMap", name.Namespace, name.Name) {
			faults = faults.and(notPermitted(from, "ConfigMap", name))
			continue
		}
		text, err := c.authoritiesIn(name)
		if err != nil {
			faults = faults.and(faultOf(gwv1.ListenerReasonInvalidCACertificateRef, "%v", err))
			continue
		}
		if found.Len()+len(text) > maxAuthorities {
			faults = faults.and(tooLarge(from.kind))
			continue
		}
		found.WriteString(text)
	}
	return found.String(), faults
}

// tooLarge says that an object refers to more authorities than nodes get.
func tooLarge(kind string) fault {
	return faultOf(gwv1.ListenerReasonInvalidCACertificateRef,
		"the certificates of all authorities of the %s have more than %d bytes in PEM: leave authorities out", kind, maxAuthorities)
}

// bundle is what was read from a ConfigMap with certificates of authorities.
type bundle struct {
	text string
	err  error
}

// authoritiesIn returns the certificates of authorities, in PEM, that a ConfigMap has.
func (c *compiler) authoritiesIn(name types.NamespacedName) (string, error) {
	found, known := c.bundles[name]
	if !known {
		c.out.ConfigMaps[name] = true
		found.text, found.err = readAuthorities(c.in.ConfigMap(name.Namespace, name.Name), name)
		c.bundles[name] = found
	}
	return found.text, found.err
}

func readAuthorities(configMap *corev1.ConfigMap, name types.NamespacedName) (string, error) {
	if configMap == nil {
		return "", fmt.Errorf("there is no ConfigMap %s", name)
	}
	return authoritiesOf("ConfigMap "+name.String(), cmp.Or(configMap.Data[authorityKey], string(configMap.BinaryData[authorityKey])))
}

// authoritiesOf returns the certificates of authorities, in PEM, in a text that an object has under
// authorityKey. The errors name the object.
func authoritiesOf(object, text string) (string, error) {
	if text == "" {
		return "", fmt.Errorf("the %s has no %s", object, authorityKey)
	}
	found, err := parseAuthorities(text)
	if err != nil {
		return "", fmt.Errorf("read %s of %s: %w", authorityKey, object, err)
	}
	return found, nil
}

// parseAuthorities returns the certificates of a PEM text, and nothing else of it. A private
// key beside them stays where it is.
func parseAuthorities(text string) (string, error) {
	var found strings.Builder
	for rest := []byte(text); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("parse certificate: %w", err)
		}
		found.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
	}
	switch {
	case found.Len() == 0:
		return "", errors.New("it has no certificate in PEM")
	case found.Len() > maxAuthorities:
		return "", fmt.Errorf("its certificates have %d bytes in PEM: leave authorities out until they have %d", found.Len(), maxAuthorities)
	}
	return found.String(), nil
}

func notPermitted(from referrer, kind string, to types.NamespacedName) fault {
	return faultOf(gwv1.ListenerReasonRefNotPermitted,
		"no ReferenceGrant in namespace %s allows a %s in namespace %s to refer to the %s %s", to.Namespace, from.kind, from.namespace, kind, to.Name)
}

// objectKind writes the kind of an object with its group.
func objectKind(group, kind string) string {
	if group == "" {
		return "a " + kind
	}
	return "a " + kind + " of " + group
}
