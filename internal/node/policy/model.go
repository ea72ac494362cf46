package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// model is what the server has told.
type model struct {
	active bool
	sets   map[string]map[netip.Addr]struct{}
	groups map[string]*group
	pods   map[string]netpolicy.Pod // by NAMESPACE/NAME
}

func newModel() model {
	return model{sets: map[string]map[netip.Addr]struct{}{}, groups: map[string]*group{}, pods: map[string]netpolicy.Pod{}}
}

// changed has, by the name of a group, the addresses whose elements may have changed, with the
// elements from before.
type changed map[string]map[netip.Addr][]element

// merge takes an update over. It returns what may have changed in the groups of used.
func (m *model) merge(update netpolicy.Update, used map[string]*group) changed {
	if update.Whole {
		update = m.difference(update)
	}
	m.active = update.Active

	before := changed{}
	for set, change := range update.Sets {
		moved := m.moved(set, change)
		for name, g := range used {
			if len(moved) == 0 || !slices.Contains(g.sets, set) {
				continue
			}
			if before[name] == nil {
				before[name] = map[netip.Addr][]element{}
			}
			for _, address := range moved {
				if _, noted := before[name][address]; !noted {
					before[name][address] = g.of(address, m.in)
				}
			}
		}
	}

	for set, change := range update.Sets {
		if change == nil {
			delete(m.sets, set)
			continue
		}
		if m.sets[set] == nil {
			m.sets[set] = map[netip.Addr]struct{}{}
		}
		for _, address := range change.Remove {
			delete(m.sets[set], address)
		}
		for _, address := range change.Add {
			m.sets[set][address] = struct{}{}
		}
	}
	for name, g := range update.Groups {
		if g == nil {
			delete(m.groups, name)
		} else if m.groups[name] == nil {
			m.groups[name] = compile(g)
		}
	}
	for name, pod := range update.Pods {
		if pod == nil {
			delete(m.pods, name)
		} else {
			m.pods[name] = *pod
		}
	}
	return before
}

// difference turns an update that replaces everything into one that changes what is there.
func (m *model) difference(whole netpolicy.Update) netpolicy.Update {
	update := netpolicy.Update{
		Active: whole.Active, Sets: map[string]*netpolicy.Change{}, Groups: maps.Clone(whole.Groups), Pods: maps.Clone(whole.Pods),
	}
	for set := range m.sets {
		update.Sets[set] = nil
	}
	for set, content := range whole.Sets {
		if content == nil {
			continue
		}
		change := &netpolicy.Change{Add: content.Add}
		stays := make(map[netip.Addr]struct{}, len(content.Add))
		for _, address := range content.Add {
			stays[address] = struct{}{}
		}
		for address := range m.sets[set] {
			if _, is := stays[address]; !is {
				change.Remove = append(change.Remove, address)
			}
		}
		update.Sets[set] = change
	}
	absent(&update.Groups, m.groups)
	absent(&update.Pods, m.pods)
	return update
}

// absent marks what an update does not have any more as removed.
func absent[U, M any](update *map[string]*U, model map[string]M) {
	if *update == nil {
		*update = map[string]*U{}
	}
	for name := range model {
		if _, stays := (*update)[name]; !stays {
			(*update)[name] = nil
		}
	}
}

// moved returns the addresses that a change adds to a set or removes from it.
func (m *model) moved(set string, change *netpolicy.Change) (moved []netip.Addr) {
	if change == nil {
		return slices.Collect(maps.Keys(m.sets[set]))
	}
	for _, address := range change.Add {
		if !m.in(set, address) {
			moved = append(moved, address)
		}
	}
	for _, address := range change.Remove {
		if m.in(set, address) {
			moved = append(moved, address)
		}
	}
	return moved
}

// in tells whether a set contains an address.
func (m *model) in(set string, address netip.Addr) bool {
	_, is := m.sets[set][address]
	return is
}

// members returns the elements of all members of a group's sets in a family.
func (m *model) members(g *group, is4 bool) (all []element) {
	seen := map[netip.Addr]struct{}{}
	for _, set := range g.sets {
		for address := range m.sets[set] {
			if _, twice := seen[address]; address.Is4() == is4 && !twice {
				seen[address] = struct{}{}
				all = append(all, g.of(address, m.in)...)
			}
		}
	}
	return all
}

// knows tells whether the server has told about a pod.
func (m *model) knows(s netpolicy.Sandbox) bool {
	pod, known := m.pods[s.Namespace+"/"+s.Name]
	return known && pod.UID == s.UID
}

// maxElements is how many elements the sets of all groups may have. nft needs about 1 KiB for each while
// it writes them.
const maxElements = 250_000

// excess returns the groups that do not fit the node, or nil. Each time, the namespace with the most
// elements gives up its largest group, so that a namespace with excessive policies does not harm the
// others, however it divides them into groups.
func (m *model) excess(sandboxes map[string]netpolicy.Sandbox) map[string]bool {
	namespaces, total := m.sizes(sandboxes)
	var excess map[string]bool
	for total > maxElements {
		most := slices.MaxFunc(slices.Sorted(maps.Keys(namespaces)), func(a, b string) int {
			return cmp.Compare(sum(namespaces[a]), sum(namespaces[b]))
		})
		groups := namespaces[most]
		largest := slices.MaxFunc(slices.Sorted(maps.Keys(groups)), func(a, b string) int {
			return cmp.Compare(groups[a], groups[b])
		})
		if excess == nil {
			excess = map[string]bool{}
		}
		excess[largest] = true
		total -= groups[largest]
		delete(groups, largest)
	}
	return excess
}

// sizes returns the sizes of the groups of sandboxes, by namespace and name, and their sum. All pods
// of a group are of one namespace.
func (m *model) sizes(sandboxes map[string]netpolicy.Sandbox) (namespaces map[string]map[string]int, total int) {
	namespaces = map[string]map[string]int{}
	for _, s := range sandboxes {
		if !m.knows(s) {
			continue
		}
		pod := m.pods[s.Namespace+"/"+s.Name]
		for _, name := range []string{pod.Ingress, pod.Egress} {
			g := m.groups[name]
			if _, counted := namespaces[s.Namespace][name]; counted || g == nil || g.everything {
				continue
			}
			if namespaces[s.Namespace] == nil {
				namespaces[s.Namespace] = map[string]int{}
			}
			size := m.size(g)
			namespaces[s.Namespace][name] = size
			total += size
		}
	}
	return namespaces, total
}

func sum(groups map[string]int) (total int) {
	for _, size := range groups {
		total += size
	}
	return total
}

// size returns how many elements a group has at most.
func (m *model) size(g *group) int {
	if g.tooLarge {
		return maxElements + 1
	}
	size := len(g.ports) + len(g.blocks) + len(g.areas)
	for i, set := range g.sets {
		size += len(m.sets[set]) * max(1, len(g.grants[i].singles)+len(g.grants[i].ranges))
	}
	return size
}

// place returns what holds for the addresses of sandboxes. Addresses for which nothing holds are
// not in it. excess are the groups that are too large.
func (m *model) place(sandboxes map[string]netpolicy.Sandbox) (placed map[netip.Addr]placement, excess map[string]bool) {
	placed = map[netip.Addr]placement{}
	if !m.active {
		return placed, nil
	}
	excess = m.excess(sandboxes)
	for _, s := range sandboxes {
		place := m.placeOf(s, excess)
		if place == (placement{}) {
			continue
		}
		for _, address := range s.Addresses {
			place.self = ""
			if !place.closed {
				var self []string
				for _, other := range s.Addresses {
					if other.Is4() == address.Is4() {
						self = append(self, other.String())
					}
				}
				place.self = strings.Join(self, " ")
			}
			placed[address] = place
		}
	}
	return placed, excess
}

// placeOf returns what holds for a sandbox. A pod that is not known, or whose group is not or is
// too large, may have no connection.
func (m *model) placeOf(s netpolicy.Sandbox, excess map[string]bool) (place placement) {
	if !m.knows(s) {
		return placement{closed: true}
	}
	pod := m.pods[s.Namespace+"/"+s.Name]
	for _, d := range directions {
		name := pod.Ingress
		if d == egress {
			name = pod.Egress
		}
		if name == "" {
			continue
		}
		g := m.groups[name]
		switch {
		case g == nil || excess[name]:
			return placement{closed: true}
		case g.everything:
			// This is as if nothing isolated the pod.
		case d == ingress:
			place.ingress = name
		default:
			place.egress = name
		}
	}
	return place
}
