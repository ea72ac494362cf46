package hosts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxRecorded is how many hosts of a namespace a Record has, and maxSize how many bytes all entries
// together take in a Secret, about: embedded etcd takes objects of 1.5 MiB. The order of further hosts is
// that of the age of their objects alone.
const (
	maxRecorded = 1000
	maxSize     = 1 << 20
)

// Record says which namespace has had which host, and in which order the cluster has seen that. An
// object shows its own age, and not since when it names a host: without a Record, somebody could
// make an Ingress in time, and later write a host of somebody else into it. The elected server
// keeps the Record in a Secret, and all servers read it.
type Record map[string]Held

// Held is the namespace that has a host.
type Held struct {
	Namespace string
	// Rank orders all that is in a Record. The smaller one was first.
	Rank int
}

// compare compares claims. Those of namespaces that have their hosts already come first.
func (r Record) compare(a, b *Claim) int {
	first, hasFirst := r.rank(a)
	second, hasSecond := r.rank(b)
	if !a.assigned && !b.assigned {
		if hasFirst != hasSecond {
			return compareBool(hasSecond, hasFirst)
		}
		if hasFirst && first != second {
			return cmp.Compare(first, second)
		}
	}
	return compareAge(a, b)
}

func (r Record) rank(claim *Claim) (int, bool) {
	held, has := r[claim.Host]
	return held.Rank, has && held.Namespace == claim.Namespace
}

// Record returns what is to be recorded of the owners, with the ranks of the Record before.
// Entries that stay are equal.
func (o *Owners) Record(before Record) Record {
	now := Record{}
	if o == nil {
		return now
	}
	last := 0
	var added []*Claim
	for host, has := range o.entries {
		switch held, was := before[host]; {
		case has.claim.assigned: // the annotation says it
		case was && held.Namespace == has.claim.Namespace:
			now[host] = held
			last = max(last, held.Rank)
		default:
			added = append(added, has.claim)
		}
	}
	// Who had a host before an administrator gave it to somebody else has it again afterwards.
	for _, conflict := range o.conflicts {
		if held := before[conflict.Claim.Host]; conflict.Owner.assigned && held.Namespace == conflict.Claim.Namespace {
			now[conflict.Claim.Host] = held
			last = max(last, held.Rank)
		}
	}
	slices.SortFunc(added, compareAge)
	for _, claim := range added {
		last++
		now[claim.Host] = Held{claim.Namespace, last}
	}
	now.cut()
	return now
}

// cut removes the last entries of the namespaces that have the most, so that the Secret takes the
// rest. Otherwise no entry of anybody could be written any more.
func (r Record) cut() {
	ranked := slices.SortedFunc(maps.Keys(r), func(a, b string) int { return cmp.Or(cmp.Compare(r[a].Rank, r[b].Rank), cmp.Compare(a, b)) })
	for limit := maxRecorded; ; limit /= 2 {
		count, size, beyond := map[string]int{}, 0, []string(nil)
		for _, host := range ranked {
			namespace := r[host].Namespace
			if count[namespace] == limit {
				beyond = append(beyond, host)
				continue
			}
			count[namespace]++
			// The Secret has each key twice: also in metadata.managedFields.
			size += 2*len(host) + len(namespace) + 48
		}
		if size <= maxSize {
			for _, host := range beyond {
				delete(r, host)
			}
			return
		}
	}
}

// keyOf returns the key of a host in a Secret, which can have no star.
func keyOf(host string) string {
	if host == "" {
		return "_"
	}
	return strings.Replace(host, "*", "_", 1)
}

// hostOf returns the host of a key.
func hostOf(key string) string {
	if key == "_" {
		return ""
	}
	if rest, is := strings.CutPrefix(key, "_."); is {
		return "*." + rest
	}
	return key
}

// ReadRecord reads the data of a Secret. Values that nobody has written so are left out.
func ReadRecord(data map[string][]byte) Record {
	record := Record{}
	for key, value := range data {
		rank, namespace, found := strings.Cut(string(value), " ")
		number, err := strconv.Atoi(rank)
		if found && err == nil && namespace != "" {
			record[hostOf(key)] = Held{namespace, number}
		}
	}
	return record
}

// Changes returns what has to be written into the Secret to make before now. Nil removes a key.
func Changes(before, now Record) map[string][]byte {
	changes := map[string][]byte{}
	for host := range before {
		if _, stays := now[host]; !stays {
			changes[keyOf(host)] = nil
		}
	}
	for _, host := range slices.Sorted(maps.Keys(now)) {
		if before[host] != now[host] {
			changes[keyOf(host)] = fmt.Appendf(nil, "%d %s", now[host].Rank, now[host].Namespace)
		}
	}
	return changes
}
