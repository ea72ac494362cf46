package plot

import (
	"bytes"
	"image/color"
	"image/png"
	"testing"
)

func TestStep(t *testing.T) {
	for _, test := range []struct{ most, want float64 }{
		{700, 100}, {701, 200}, {30, 5}, {0.6, 0.1}, {0, 1}, {120, 20},
	} {
		if got := step(test.most); got < test.want*0.999 || got > test.want*1.001 {
			t.Errorf("step(%v) = %v, want %v", test.most, got, test.want)
		}
	}
}

func TestPNG(t *testing.T) {
	red := color.RGBA{0xff, 0, 0, 0xff}
	chart := Chart{Title: "t", X: "x", Y: "y", Lines: []Line{{Name: "a", Color: red, Marks: true, Points: []Point{{0, 0}, {10, 10}}}}}
	var text bytes.Buffer
	if err := chart.PNG(&text); err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(&text)
	if err != nil {
		t.Fatal(err)
	}
	if got := picture.At(left, height-bottom); got != red {
		t.Errorf("at the origin is %v, want the line's mark", got)
	}
	if err := (Chart{}).PNG(&text); err != nil {
		t.Errorf("an empty chart: %v", err)
	}
}
