// Package hosts decides which namespace has each host name of the front that all namespaces
// share. All Ingresses, and all Gateways without an address of their own, are on this front.
// Decide is a function of the claims of both. The packages compile and ingress make the claims
// and ask what became of them; package front keeps the requests to a host from everybody except
// its owner.
//
//   - A host belongs to a namespace, whatever the port: an authority asks for it on port 80, and
//     cookies know no port.
//   - The oldest claim wins. A namespace that has a host keeps it as long as it claims it (Record),
//     so that nobody takes a host by changing an object that is older.
//   - A wildcard covers the names below it. An exact name that is older stays its owner's. The
//     empty name, which stands for all hosts, and wildcards such as *.com and *.co.uk cover nothing
//     else: otherwise one tenant could keep all others from every new name.
//   - The owner may let other namespaces in (gateways.AllowAnnotation). An administrator may give a host
//     to a namespace (gateways.HostsAnnotation). The namespace that had it before then loses it.
package hosts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// Object is an object that claims hosts.
type Object interface {
	metav1.Object
	runtime.Object
}

// Claim says that a namespace wants a host.
type Claim struct {
	// Host is a name in lower case, exact or with the wildcard "*." in front, or empty for all
	// names.
	Host string
	// Namespace is the one that gets the host. A route in another namespace claims hosts for
	// the namespace of its Gateway.
	Namespace string
	// Kind is that of Object, which names the host.
	Kind   string
	Object Object
	// Since is the age of the claim: when the youngest object that it needs was made.
	Since time.Time
	// assigned says that an administrator has made the claim.
	assigned bool
}

// Conflict is a claim to a host that another namespace has.
type Conflict struct {
	Claim *Claim
	// Owner is the claim by which the other namespace has the host.
	Owner *Claim
}

// entry is a host that a namespace has.
type entry struct {
	claim *Claim
	// allowed are the namespaces that the owner lets in, by the object that says so.
	allowed map[Object]sets.Set[string]
}

func (e *entry) admits(namespace string) bool {
	if e.claim.Namespace == namespace {
		return true
	}
	for _, names := range e.allowed {
		if names.Has(namespace) {
			return true
		}
	}
	return false
}

// Owners knows who has each host. Nil means that hosts belong to no namespace: everybody may
// serve all of them.
type Owners struct {
	entries   map[string]*entry
	conflicts []Conflict
}

// Assigned returns the claims that an administrator has made for namespaces. wrong are the claims whose
// host is no host name.
func Assigned[N Object](namespaces []N) (claims, wrong []Claim) {
	for _, namespace := range namespaces {
		for _, host := range split(namespace.GetAnnotations()[gateways.HostsAnnotation]) {
			claim := Claim{
				Host: strings.ToLower(host), Namespace: namespace.GetName(), Kind: "Namespace", Object: namespace,
				Since: namespace.GetCreationTimestamp().Time, assigned: true,
			}
			if Valid(claim.Host) {
				claims = append(claims, claim)
			} else {
				wrong = append(wrong, claim)
			}
		}
	}
	return claims, wrong
}

// Valid tells whether a text can be a host name, perhaps with the wildcard "*." in front.
func Valid(text string) bool {
	return len(text) <= validation.DNS1123SubdomainMaxLength && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(text, "*."))) == 0
}

// split reads a list of names that are separated by commas.
func split(list string) []string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Decide gives each host to one of the namespaces that claim it. record has who had which host
// before, or is nil.
func Decide(claims []Claim, record Record) *Owners {
	allowed := allowedBy(claims)
	order := make([]*Claim, len(claims))
	for i := range claims {
		order[i] = &claims[i]
	}
	slices.SortStableFunc(order, record.compare)
	o := &Owners{entries: make(map[string]*entry, len(order))}
	for _, claim := range order {
		if has := o.find(claim.Host); has != nil && !has.admits(claim.Namespace) {
			o.conflicts = append(o.conflicts, Conflict{claim, has.claim})
		} else if o.entries[claim.Host] == nil {
			o.entries[claim.Host] = &entry{claim, allowed[tenantHost{claim.Namespace, claim.Host}]}
		}
	}
	// The owner of a wildcard may let somebody in by a younger object for one name below it.
	o.conflicts = slices.DeleteFunc(o.conflicts, func(c Conflict) bool { return o.Admits(c.Claim.Namespace, c.Claim.Host) })
	return o
}

// tenantHost is a host that a namespace claims.
type tenantHost struct{ namespace, host string }

// allowedBy returns which namespaces the objects of each namespace let in to each host. It reads the
// annotation of an object once: an object may have thousands of hosts, and name thousands of namespaces.
func allowedBy(claims []Claim) map[tenantHost]map[Object]sets.Set[string] {
	allowed, read := map[tenantHost]map[Object]sets.Set[string]{}, map[Object]sets.Set[string]{}
	for i := range claims {
		claim := &claims[i]
		list := claim.Object.GetAnnotations()[gateways.AllowAnnotation]
		if list == "" || claim.assigned || claim.Object.GetNamespace() != claim.Namespace {
			continue
		}
		if read[claim.Object] == nil {
			read[claim.Object] = sets.New(split(list)...)
		}
		at := tenantHost{claim.Namespace, claim.Host}
		if allowed[at] == nil {
			allowed[at] = map[Object]sets.Set[string]{}
		}
		allowed[at][claim.Object] = read[claim.Object]
	}
	return allowed
}

// compareAge compares claims: an administrator's come first, of these the more specific name,
// and then the older one.
func compareAge(a, b *Claim) int {
	if a.assigned != b.assigned {
		if a.assigned {
			return -1
		}
		return 1
	}
	specific := 0
	if a.assigned {
		specific = cmp.Or(compareBool(isWide(a.Host), isWide(b.Host)), cmp.Compare(len(b.Host), len(a.Host)))
	}
	return cmp.Or(specific, a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Object.GetName(), b.Object.GetName()), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Host, b.Host))
}

// compareBool says that false comes first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// isWide tells whether a name stands for several.
func isWide(host string) bool { return host == "" || strings.HasPrefix(host, "*.") }

// find returns the entry of a host: its own, or that of the most specific wildcard that covers
// it. It returns nil if nobody has the host.
func (o *Owners) find(host string) *entry {
	if has := o.entries[host]; has != nil {
		return has
	}
	for wider := range Wider(host) {
		if has := o.entries[wider]; has != nil && covers(wider) {
			return has
		}
	}
	return nil
}

// covers tells whether a wildcard keeps other namespaces from the names below it. It does not if anybody
// can register such a name.
func covers(wildcard string) bool {
	parent := strings.TrimPrefix(wildcard, "*.")
	suffix, _ := publicsuffix.PublicSuffix(parent)
	return parent != suffix
}

// Owner returns the namespace that has a host. The name is empty if nobody has it, or if hosts belong
// to nobody.
func (o *Owners) Owner(host string) string {
	if o == nil {
		return ""
	}
	if has := o.find(host); has != nil {
		return has.claim.Namespace
	}
	return ""
}

// Refusal returns the conflict that keeps a namespace from a host, or nil if it may serve it.
func (o *Owners) Refusal(namespace, host string) *Conflict {
	if o == nil {
		return nil
	}
	has := o.find(host)
	if has == nil || has.admits(namespace) {
		return nil
	}
	return &Conflict{&Claim{Host: host, Namespace: namespace}, has.claim}
}

// Admits tells whether a namespace may serve a host that somebody has. Of hosts that nobody has,
// it returns true.
func (o *Owners) Admits(namespace, host string) bool { return o.Refusal(namespace, host) == nil }

// Owns tells whether a host belongs to a namespace.
func (o *Owners) Owns(namespace, host string) bool {
	if o == nil {
		return false
	}
	has := o.find(host)
	return has != nil && has.claim.Namespace == namespace
}

// Names returns all hosts that somebody has, sorted.
func (o *Owners) Names() []string {
	if o == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(o.entries))
}

// Conflicts returns the claims that lost, in the order of their age.
func (o *Owners) Conflicts() []Conflict {
	if o == nil {
		return nil
	}
	return o.conflicts
}

// Loser says what is wrong with the claim that lost, and what to do.
func (c *Conflict) Loser() string {
	host, what := Text(c.Claim.Host), ""
	if c.Owner.Host != c.Claim.Host {
		what = fmt.Sprintf("%s is not served: the host %s, of which %s is a part, %s", host, Text(c.Owner.Host), host, c.why())
	} else {
		what = fmt.Sprintf("the host %s %s", host, c.why())
	}
	what += ". Use another host"
	if command := c.allow(); command != "" {
		what += fmt.Sprintf(", or ask the owner to allow it: `%s`", command)
	}
	if !c.Owner.assigned && c.Claim.Host != "" { // the annotation has names only
		what += fmt.Sprintf(". Or an administrator gives the host to this namespace: `kubectl annotate namespace %s '%s=%s'`",
			c.Claim.Namespace, gateways.HostsAnnotation, c.Claim.Host)
	}
	return what
}

// why says who has the host.
func (c *Conflict) why() string {
	owner := c.Owner
	switch namespace := owner.Object.GetNamespace(); {
	case owner.assigned:
		return fmt.Sprintf("belongs to the namespace %s, to which an administrator has given it by the annotation %s", owner.Namespace, gateways.HostsAnnotation)
	case namespace != owner.Namespace:
		return fmt.Sprintf("belongs to the namespace %s, because the %s %s/%s has it already at a Gateway there", owner.Namespace, owner.Kind, namespace, owner.Object.GetName())
	}
	return fmt.Sprintf("belongs to the namespace %s, because the %s %s there has it already", owner.Namespace, owner.Kind, owner.Object.GetName())
}

// allow returns the command by which the owner lets the other namespace in. It is empty if the
// annotation would have no effect: an administrator decides, or the object is in another namespace.
func (c *Conflict) allow() string {
	if c.Owner.assigned || c.Owner.Object.GetNamespace() != c.Owner.Namespace {
		return ""
	}
	annotate, allowed := "annotate", c.Claim.Namespace
	if list := c.Owner.Object.GetAnnotations()[gateways.AllowAnnotation]; list != "" {
		annotate, allowed = "annotate --overwrite", strings.Join(append(split(list), allowed), ",")
	}
	return fmt.Sprintf("kubectl %s --namespace %s %s %s %s=%s",
		annotate, c.Owner.Namespace, strings.ToLower(c.Owner.Kind), c.Owner.Object.GetName(), gateways.AllowAnnotation, allowed)
}

// Winner says to the owner of a host that another namespace wants it. It names neither the other
// object nor its host, so that many of them are told once.
func (c *Conflict) Winner() string {
	text := fmt.Sprintf("The namespace %s wants the host %s, too, and does not get it", c.Claim.Namespace, Text(c.Owner.Host))
	if command := c.allow(); command != "" {
		text += fmt.Sprintf(". To let it serve the host: `%s`", command)
	}
	return text
}

// IsAssigned tells whether the owner has the host from an administrator.
func (c *Conflict) IsAssigned() bool { return c.Owner.assigned }

// Text returns a host for a message.
func Text(host string) string {
	if host == "" {
		return "* (all hosts that nobody else has)"
	}
	return host
}

// Wider yields the wildcards that cover all names of a host, the most specific first, and then
// the empty name. It yields nothing for the empty name.
func Wider(host string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if host == "" {
			return
		}
		for rest := strings.TrimPrefix(host, "*."); ; {
			_, parent, found := strings.Cut(rest, ".")
			if !found {
				break
			}
			if !yield("*." + parent) {
				return
			}
			rest = parent
		}
		yield("")
	}
}
