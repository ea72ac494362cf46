package acme

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// claims are the objects that have a host, by the host. A wildcard has its "*." in front.
type claims map[string][]claim

// claim says that an object has a host.
type claim struct {
	namespace string
	created   time.Time
	// owner is how a message names the object.
	owner     string
	isGateway bool
}

// claimsOf returns the hosts of routes, and of listeners of Gateways.
func claimsOf(o *Objects) claims {
	all := claims{}
	for _, route := range o.Routes {
		// The name is KIND/NAMESPACE/NAME.
		parts := strings.SplitN(route.Name, "/", 3)
		if len(parts) < 3 {
			continue
		}
		for _, host := range route.Hostnames {
			all[host] = append(all[host], claim{parts[1], route.Created, parts[0] + " " + parts[1] + "/" + parts[2], false})
		}
	}
	for _, gateway := range o.Gateways {
		for _, listener := range gateway.Spec.Listeners {
			if listener.Hostname != nil && *listener.Hostname != "" {
				host := string(*listener.Hostname)
				all[host] = append(all[host], claim{gateway.Namespace, gateway.CreationTimestamp.Time, "Gateway " + gateway.Namespace + "/" + gateway.Name, true})
			}
		}
	}
	return all
}

// refusal returns the object of another namespace that has a host before the object that asks,
// or "". Between Gateways, and between routes and Ingresses, the older one has it. A Gateway
// has it before all Ingresses, because whoever makes Gateways decides about hosts.
func (c claims) refusal(r *request, host string) (owner string) {
	for _, pattern := range patternsOf(host) {
		i := slices.IndexFunc(c[pattern], func(other claim) bool {
			switch {
			case other.namespace == r.meta.Namespace:
				return false
			case r.gateway == "" && other.isGateway:
				return true
			case r.gateway != "" && !other.isGateway:
				return false
			}
			return cmp.Or(other.created.Compare(r.meta.CreationTimestamp.Time), cmp.Compare(other.namespace, r.meta.Namespace)) < 0
		})
		if i >= 0 {
			return c[pattern][i].owner
		}
	}
	return ""
}

// patternsOf returns a host, and the wildcards that cover it.
func patternsOf(host string) []string {
	patterns := []string{host}
	for rest := host; ; {
		_, parent, found := strings.Cut(rest, ".")
		if !found {
			return patterns
		}
		patterns, rest = append(patterns, "*."+parent), parent
	}
}
