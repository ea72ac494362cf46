// Package plot draws line charts as PNG, for the benchmark.
package plot

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// Chart has lines over common axes, which begin at zero.
type Chart struct {
	Title, X, Y string
	Lines       []Line
}

// Line is one line of a chart.
type Line struct {
	Name   string
	Color  color.RGBA
	Dashed bool
	// Marks puts a dot on each point.
	Marks  bool
	Points []Point
}

// Point is in the units of the axes.
type Point struct{ X, Y float64 }

const (
	width, height            = 1200, 720
	left, right, top, bottom = 96, 40, 104, 84
	// legend is the vertical position of the lines' names.
	legend = 78
	// ticks is the approximate number of grid lines of an axis.
	ticks     = 7
	lineWidth = 3.2
	markSize  = 6.0
	// dash and gap are in pixels.
	dash, gap = 12.0, 8.0
	// With this dpi a point is a pixel.
	dpi = 72
)

var (
	ink  = color.RGBA{0x22, 0x26, 0x2b, 0xff}
	grey = color.RGBA{0x66, 0x6c, 0x74, 0xff}
	grid = color.RGBA{0xe3, 0xe6, 0xea, 0xff}
)

// PNG writes the chart.
func (c Chart) PNG(w io.Writer) error {
	p, err := newPainter()
	if err != nil {
		return err
	}
	var most Point
	for _, line := range c.Lines {
		for _, point := range line.Points {
			most.X, most.Y = max(most.X, point.X), max(most.Y, point.Y)
		}
	}
	stepX, stepY := step(most.X), step(most.Y)
	// The vertical axis ends at a round value above the highest one, the horizontal axis at the
	// last value.
	most.Y = stepY * math.Ceil(most.Y*1.02/stepY)
	if most.X == 0 {
		most.X = 1
	}
	at := func(point Point) Point {
		return Point{
			left + point.X/most.X*(width-left-right),
			height - bottom - point.Y/most.Y*(height-top-bottom),
		}
	}
	for y := 0.0; y <= most.Y*1.0001; y += stepY {
		from, to := at(Point{0, y}), at(Point{most.X, y})
		p.stroke(from, to, 1, grid)
		p.text(p.small, grey, label(y), from.X-12, from.Y+5, 1)
	}
	for x := 0.0; x <= most.X*1.0001; x += stepX {
		from := at(Point{x, 0})
		p.stroke(from, Point{from.X, from.Y + 6}, 1, grey)
		p.text(p.small, grey, label(x), from.X, from.Y+26, 0.5)
	}
	p.stroke(at(Point{}), at(Point{most.X, 0}), 1.5, grey)
	p.text(p.bold, ink, c.Title, left, 38, 0)
	p.text(p.small, grey, c.Y, left, legend, 0)
	p.text(p.small, grey, c.X, left+(width-left-right)/2, height-24, 0.5)

	for _, line := range c.Lines {
		p.line(line, at)
	}
	x := float64(width - right)
	for i := len(c.Lines) - 1; i >= 0; i-- {
		line := c.Lines[i]
		x -= p.text(p.small, ink, line.Name, x, legend, 1) + 10
		sample := Line{Color: line.Color, Dashed: line.Dashed, Points: []Point{{x - 34, legend - 5}, {x, legend - 5}}}
		p.line(sample, func(point Point) Point { return point })
		x -= 34 + 24
	}
	return png.Encode(w, p.image)
}

// step returns a round distance of ticks for an axis that ends at most.
func step(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/ticks)))
	for _, factor := range []float64{1, 2, 5} {
		if most/(factor*power) <= ticks {
			return factor * power
		}
	}
	return 10 * power
}

func label(value float64) string {
	return strconv.FormatFloat(math.Round(value*1000)/1000, 'f', -1, 64)
}

type painter struct {
	image       *image.RGBA
	small, bold font.Face
}

func newPainter() (*painter, error) {
	p := &painter{image: image.NewRGBA(image.Rect(0, 0, width, height))}
	draw.Draw(p.image, p.image.Bounds(), image.White, image.Point{}, draw.Src)
	var err error
	if p.small, err = face(goregular.TTF, 17); err == nil {
		p.bold, err = face(gobold.TTF, 21)
	}
	return p, err
}

func face(ttf []byte, size float64) (font.Face, error) {
	parsed, err := opentype.Parse(ttf)
	if err != nil {
		return nil, fmt.Errorf("parse font: %w", err)
	}
	return opentype.NewFace(parsed, &opentype.FaceOptions{Size: size, DPI: dpi, Hinting: font.HintingFull})
}

// text writes a text so that x is at this share of its width, and returns the width.
func (p *painter) text(face font.Face, c color.Color, text string, x, y, share float64) float64 {
	drawer := font.Drawer{Dst: p.image, Src: image.NewUniform(c), Face: face}
	wide := float64(drawer.MeasureString(text)) / 64
	drawer.Dot = fixed.Point26_6{X: fixed.Int26_6((x - share*wide) * 64), Y: fixed.Int26_6(y * 64)}
	drawer.DrawString(text)
	return wide
}

func (p *painter) line(line Line, at func(Point) Point) {
	// along is the length of the line so far, which determines the dashes.
	along := 0.0
	for i, point := range line.Points {
		here := at(point)
		if line.Marks {
			p.disc(here, markSize, line.Color)
		}
		if i == 0 {
			continue
		}
		from := at(line.Points[i-1])
		length := math.Hypot(here.X-from.X, here.Y-from.Y)
		if !line.Dashed {
			p.stroke(from, here, lineWidth, line.Color)
			p.disc(here, lineWidth/2, line.Color)
			continue
		}
		for done := 0.0; done < length; {
			phase := math.Mod(along+done, dash+gap)
			piece := dash + gap - phase
			if phase < dash {
				piece = dash - phase
			}
			end := min(length, done+piece)
			if phase < dash {
				p.stroke(between(from, here, done/length), between(from, here, end/length), lineWidth, line.Color)
			}
			done = end + 1e-9
		}
		along += length
	}
}

func between(a, b Point, share float64) Point {
	return Point{a.X + (b.X-a.X)*share, a.Y + (b.Y-a.Y)*share}
}

// stroke fills the rectangle around a straight line.
func (p *painter) stroke(from, to Point, wide float64, c color.Color) {
	length := math.Hypot(to.X-from.X, to.Y-from.Y)
	if length == 0 {
		return
	}
	x, y := (to.Y-from.Y)/length*wide/2, (from.X-to.X)/length*wide/2
	p.fill(c, Point{from.X + x, from.Y + y}, Point{to.X + x, to.Y + y}, Point{to.X - x, to.Y - y}, Point{from.X - x, from.Y - y})
}

func (p *painter) disc(centre Point, radius float64, c color.Color) {
	corners := make([]Point, 24)
	for i := range corners {
		sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(len(corners)))
		corners[i] = Point{centre.X + radius*cos, centre.Y + radius*sin}
	}
	p.fill(c, corners...)
}

// fill fills a polygon. The rasterizer covers only the polygon's rectangle, because its cost grows
// with its area.
func (p *painter) fill(c color.Color, corners ...Point) {
	low, high := corners[0], corners[0]
	for _, corner := range corners {
		low = Point{min(low.X, corner.X), min(low.Y, corner.Y)}
		high = Point{max(high.X, corner.X), max(high.Y, corner.Y)}
	}
	place := image.Rect(int(low.X)-1, int(low.Y)-1, int(high.X)+2, int(high.Y)+2)
	r := vector.NewRasterizer(place.Dx(), place.Dy())
	for i, corner := range corners {
		x, y := float32(corner.X-float64(place.Min.X)), float32(corner.Y-float64(place.Min.Y))
		if i == 0 {
			r.MoveTo(x, y)
		} else {
			r.LineTo(x, y)
		}
	}
	r.ClosePath()
	r.Draw(p.image, place, image.NewUniform(c), image.Point{})
}
