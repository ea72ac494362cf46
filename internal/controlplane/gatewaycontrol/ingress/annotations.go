package ingress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// prefix is that of the annotations on Ingresses.
const prefix = "ingress.kedge.dev/"

// These are the annotations.
const (
	// AnnotationRedirect answers requests over HTTP with 308 and the same place over HTTPS, if
	// it is "true".
	AnnotationRedirect = prefix + "redirect-https"
	// AnnotationMaxBody is how many bytes the body of a request may have, as a quantity of
	// Kubernetes such as 10Mi.
	AnnotationMaxBody = prefix + "max-body-size"
	// AnnotationTimeout is how long a request may take, as a duration of Go such as 30s.
	AnnotationTimeout = prefix + "request-timeout"
	// AnnotationAuthSecret is the name of a Secret of the same namespace. Its key auth, or
	// else users, has lines of htpasswd. Clients must show one of these names with its password.
	AnnotationAuthSecret = prefix + "auth-secret"
	// AnnotationAuthRealm is what browsers show when they ask for the password.
	AnnotationAuthRealm = prefix + "auth-realm"
	// AnnotationProtocol is what the backends speak: HTTP, HTTPS, H2C or GRPC.
	AnnotationProtocol = prefix + "backend-protocol"
)

// maxTimeout is the longest request-timeout.
const maxTimeout = 24 * time.Hour

// settings are what the annotations of an Ingress say.
type settings struct {
	// closed says that an annotation cannot be used: all requests are answered with 503.
	closed   bool
	redirect bool
	maxBody  int64
	timeout  time.Duration
	auth     *routing.BasicAuth
	protocol protocol
	grpc     bool
}

// protocol is what a backend speaks.
type protocol string

// These are the protocols. With unset, the port of the Service decides.
const (
	unset     protocol = ""
	plainHTTP protocol = "http"
	overTLS   protocol = "https"
	plainH2   protocol = "h2c"
)

// annotations reads the annotations of an Ingress.
func (c *compiler) annotations(e *entry) settings {
	var s settings
	for _, key := range slices.Sorted(maps.Keys(e.Annotations)) {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		if err := c.annotation(&s, e, key, e.Annotations[key]); err != nil {
			s.closed = true
			c.fault(e, ReasonBadAnnotation, "All requests of the Ingress are answered with 503, because kedge cannot use the annotation %s: %s", key, clip(err.Error()))
		}
	}
	if realm := e.Annotations[AnnotationAuthRealm]; s.auth != nil {
		s.auth.Realm = realm
	} else if realm != "" && !s.closed {
		s.closed = true
		c.fault(e, ReasonBadAnnotation, "All requests of the Ingress are answered with 503, because it has the annotation %s and no %s: add it", AnnotationAuthRealm, AnnotationAuthSecret)
	}
	return s
}

// annotation reads one annotation into s. The error says what is wrong with its value.
func (c *compiler) annotation(s *settings, e *entry, key, value string) (err error) {
	switch key {
	case AnnotationRedirect:
		// What nobody can read redirects: it is the safer of the two.
		s.redirect = value != "false"
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", value)
		}
	case AnnotationMaxBody:
		s.maxBody, err = parseSize(value)
	case AnnotationTimeout:
		s.timeout, err = parseTimeout(value)
	case AnnotationAuthSecret:
		s.auth, err = c.readAuth(e, value)
	case AnnotationAuthRealm:
		err = checkRealm(value)
	case AnnotationProtocol:
		s.protocol, s.grpc, err = parseProtocol(value)
	default:
		err = fmt.Errorf("kedge knows only %s, %s, %s, %s, %s and %s of this prefix", AnnotationRedirect, AnnotationMaxBody,
			AnnotationTimeout, AnnotationAuthSecret, AnnotationAuthRealm, AnnotationProtocol)
	}
	return err
}

// parseSize reads a number of bytes.
func parseSize(value string) (int64, error) {
	quantity, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, fmt.Errorf("%q is not a quantity: write one such as 10Mi", value)
	}
	size, exact := quantity.AsInt64()
	if !exact || size <= 0 {
		return 0, fmt.Errorf("%q is not a number of bytes above 0", value)
	}
	return size, nil
}

// parseTimeout reads a duration.
func parseTimeout(value string) (time.Duration, error) {
	timeout, err := time.ParseDuration(value)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write one such as 30s or 5m", value)
	}
	if timeout <= 0 || timeout > maxTimeout {
		return 0, fmt.Errorf("%q is not between 0 and %s", value, maxTimeout)
	}
	return timeout, nil
}

// parseProtocol reads what backends speak, in any case.
func parseProtocol(value string) (p protocol, grpc bool, err error) {
	switch strings.ToUpper(value) {
	case "HTTP":
		return plainHTTP, false, nil
	case "HTTPS":
		return overTLS, false, nil
	case "H2C":
		return plainH2, false, nil
	case "GRPC":
		return plainH2, true, nil
	}
	return unset, false, fmt.Errorf("%q is none of HTTP, HTTPS, H2C and GRPC", value)
}

// maxQuoted is how much of an error a fault repeats. The user's own text may be in it.
const maxQuoted = 300

// clip returns the beginning of a text.
func clip(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuoted], "") + "..."
}
