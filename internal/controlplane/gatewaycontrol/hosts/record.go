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
	ranked := r.ranked()
	for limit := maxRecorded; ; limit /= 2 {
		count, size, beyond := map[string]int{}, 0, []string(nil)
		for _, host := range ranked {
			namespace := r[host].Namespace
			if count[namespace] == limit {
				beyond = append(beyond, host)
				continue
			}
			count[namespace]++
			// An older kedge makes an entry of each host, which is twice in the Secret: also in
			// metadata.managedFields.
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

const (
	// listKey is the entry of the Secret with the Record: a list of lines HOST NAMESPACE behind listHeader.
	// No host has this name.
	//
	// It is one entry for all hosts, because metadata.managedFields has the key of each entry again. Many new
	// hosts make many versions of the Secret, and the API server keeps each version for some minutes.
	listKey = "_hosts"
	// listHeader also keeps an older kedge from taking the list for the entry of a host, which begins with a
	// number.
	listHeader = "# host (or nothing, for all hosts) and namespace, in the order in which this cluster has seen them\n"
)

// list returns the Record as text. It is empty without a host.
func (r Record) list() string {
	if len(r) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString(listHeader)
	for _, host := range r.ranked() {
		fmt.Fprintf(&text, "%s %s\n", host, r[host].Namespace)
	}
	return text.String()
}

// ranked returns the hosts in their order.
func (r Record) ranked() []string {
	return slices.SortedFunc(maps.Keys(r), func(a, b string) int { return cmp.Or(cmp.Compare(r[a].Rank, r[b].Rank), cmp.Compare(a, b)) })
}

// keyOf returns the entry of a host in a Secret that an older kedge has written. It had one for each host:
// the number in the order, and the namespace. While the cluster is being upgraded, older servers read these.
// So those that are right stay, and no new ones are made.
func keyOf(host string) string {
	if host == "" {
		return "_"
	}
	return strings.Replace(host, "*", "_", 1)
}

// hostOf returns the host of an entry.
func hostOf(key string) string {
	if key == "_" {
		return ""
	}
	if rest, is := strings.CutPrefix(key, "_."); is {
		return "*." + rest
	}
	return key
}

// ReadRecord reads the data of a Secret. It leaves out entries that kedge cannot have written.
func ReadRecord(data map[string][]byte) Record {
	record := Record{}
	list := strings.TrimPrefix(string(data[listKey]), listHeader)
	for line := range strings.SplitSeq(list, "\n") {
		host, namespace, found := strings.Cut(line, " ")
		if _, twice := record[host]; found && namespace != "" && !twice {
			record[host] = Held{namespace, len(record) + 1}
		}
	}
	listed := len(record)
	for host, held := range readSingle(data) {
		if _, is := record[host]; !is {
			record[host] = Held{held.Namespace, listed + held.Rank}
		}
	}
	return record
}

// readSingle reads the entries of single hosts.
func readSingle(data map[string][]byte) Record {
	record := Record{}
	for key, value := range data {
		rank, namespace, found := strings.Cut(string(value), " ")
		number, err := strconv.Atoi(rank)
		if host := hostOf(key); found && err == nil && namespace != "" && keyOf(host) == key && key != listKey {
			record[host] = Held{namespace, number}
		}
	}
	return record
}

// Changes returns what has to be written into a Secret with the data so that it has a Record. Nil removes
// an entry.
func Changes(data map[string][]byte, now Record) map[string][]byte {
	changes := map[string][]byte{}
	if text := now.list(); text != string(data[listKey]) {
		changes[listKey] = []byte(text)
	}
	for host, held := range readSingle(data) {
		if now[host].Namespace != held.Namespace {
			changes[keyOf(host)] = nil
		}
	}
	return changes
}
