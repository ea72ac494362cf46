package bench

import (
	"fmt"
	"strings"
	"testing"
)

func TestReadLoad(t *testing.T) {
	var log strings.Builder
	for i := range 200 {
		fmt.Fprintf(&log, "%d\t200\t%d\n", 1_000_000+i*10_000, (i+1)*100)
	}
	got, err := readLoad(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	if got.Median != 0.0101 || got.P99 != 0.0199 || got.PerSecond < 99 || got.PerSecond > 100 {
		t.Errorf("got %+v", got)
	}
	for _, bad := range []string{"", "1 200", "1 200 x", strings.Replace(log.String(), "200", "502", 1)} {
		if _, err := readLoad(strings.NewReader(bad)); err == nil {
			t.Errorf("%.20q is accepted", bad)
		}
	}
}
