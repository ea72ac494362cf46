package hosts

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// FuzzDecide has namespaces that claim any hosts, and a Secret that anybody has written. Without a
// permission, no two namespaces may serve one host, and who has hosts keeps them.
func FuzzDecide(f *testing.F) {
	f.Add("a x.test\nb x.test\nb *.test", "x.test", "1 b", "")
	f.Add("a -\nb *.x.test\nc y.x.test", "_.x.test", "9 b", "y.x.test c\n b\n")
	f.Fuzz(func(t *testing.T, text, key, value, list string) {
		var all []Claim
		for line := range strings.SplitSeq(text, "\n") {
			if fields := strings.Fields(line); len(fields) == 2 {
				all = append(all, claims(line)...)
			}
		}
		data := map[string][]byte{listKey: []byte(list), key: []byte(value)}
		before := ReadRecord(data)
		owners := Decide(all, before)
		for i := range all {
			admitted := map[string]bool{}
			for j := range all {
				if owners.Admits(all[j].Namespace, all[i].Host) {
					admitted[all[j].Namespace] = true
				}
			}
			if len(admitted) != 1 {
				t.Errorf("%q may be served by %v", all[i].Host, admitted)
			}
		}
		record := owners.Record(before)
		if again := Decide(all, record).Record(record); !maps.Equal(record, again) {
			t.Errorf("%v became %v", record, again)
		}
		changes := Changes(data, record)
		for key, value := range changes {
			if value == nil {
				delete(data, key)
			} else {
				data[key] = value
			}
		}
		if again := ReadRecord(data); !slices.Equal(again.ranked(), record.ranked()) {
			t.Errorf("%v was read as %v", record, again)
		}
	})
}
