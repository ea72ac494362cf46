package bench

import (
	"strings"
	"testing"
)

func TestStorageTable(t *testing.T) {
	r := &storageReport{Rounds: map[string][]storageResult{
		placeBare:      {{Write: 400 * mebibyte, Mounted: 0.5}, {Write: 200 * mebibyte, Mounted: 0.5}, {Write: 300 * mebibyte, Mounted: 0.5}},
		placeUnlimited: {{Write: 300 * mebibyte, Mounted: 0.75}},
		placeLocal:     {{Write: 150 * mebibyte, Mounted: 1}},
	}}
	text := strings.Join(strings.Fields(r.Table()), " ")
	for _, want := range []string{
		"claim to pod, s write, MiB/s",
		placeBare + " 0.50 1.00 300.0 1.00",
		placeUnlimited + " 0.75 1.50 300.0 1.00",
		placeLocal + " 1.00 2.00 150.0 0.50",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, r.Table())
		}
	}
}

func TestReadFio(t *testing.T) {
	found, err := readFio(`{"fio version": "fio-3.33", "jobs": [{"jobname": "bench", "read": {"bw_bytes": 1024, "iops": 0.25}, "write": {"bw_bytes": 4096, "iops": 1.5}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if found.Read.Bandwidth != 1024 || found.Read.IOPS != 0.25 || found.Write.Bandwidth != 4096 || found.Write.IOPS != 1.5 {
		t.Errorf("read %+v", found)
	}
	for _, text := range []string{"", "fio: engine not loadable", `{"jobs": []}`} {
		if _, err := readFio(text); err == nil {
			t.Errorf("no fault in %q", text)
		}
	}
}
