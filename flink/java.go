package flink

// A reader of Java's object serialization, as far as the checkpoint properties
// use it: objects, strings, enum constants, primitive fields.

const javaHeader = 0xACED0005

// Type codes of the stream.
const (
	tcNull         = 0x70
	tcReference    = 0x71
	tcClassDesc    = 0x72
	tcObject       = 0x73
	tcString       = 0x74
	tcEndBlockData = 0x78
	tcEnum         = 0x7E

	baseHandle = 0x7E0000
)

// Flags of a class.
const (
	scWriteMethod  = 0x01
	scSerializable = 0x02
)

const maxJavaDepth = 32

type javaClass struct {
	name   string
	suid   int64
	flags  byte
	fields []javaField
	super  *javaClass
}

type javaField struct {
	kind byte
	name string
}

type javaEnum struct {
	class    *javaClass
	constant string
}

// javaObject is an object with the fields of all its classes: bool, int64,
// string, *javaObject, javaEnum or nil.
type javaObject struct {
	class  *javaClass
	fields map[string]any
}

type javaDecoder struct {
	decoder
	handles []any
	depth   int
}

// object reads anything that can be the value of a field.
func (d *javaDecoder) object() any {
	at := d.at
	if d.depth++; d.depth > maxJavaDepth {
		d.fail(at, "objects nested more than %d deep", maxJavaDepth)
		return nil
	}
	defer func() { d.depth-- }()
	switch tc := d.u8(fieldProperties); tc {
	case tcNull:
		return nil
	case tcReference:
		return d.reference(at)
	case tcClassDesc:
		return d.classDesc()
	case tcString:
		s := d.text(fieldProperties)
		d.handles = append(d.handles, s)
		return s
	case tcEnum:
		e := javaEnum{class: d.class()}
		slot := d.reserve()
		e.constant, _ = d.object().(string)
		d.handles[slot] = e
		return e
	case tcObject:
		o := &javaObject{class: d.class(), fields: map[string]any{}}
		d.handles = append(d.handles, o)
		d.fields(o, o.class)
		return o
	default:
		d.fail(at, "unknown type code in a Java stream: %#x", tc)
		return nil
	}
}

func (d *javaDecoder) reserve() int {
	d.handles = append(d.handles, nil)
	return len(d.handles) - 1
}

func (d *javaDecoder) reference(at int) any {
	n := d.i32(fieldProperties) - baseHandle
	if d.err == nil && (n < 0 || n >= len(d.handles)) {
		d.fail(at, "reference to object %d of %d", n, len(d.handles))
	}
	if d.err != nil {
		return nil
	}
	return d.handles[n]
}

// class reads the class of an object or enum constant, or a superclass; nil is
// none.
func (d *javaDecoder) class() *javaClass {
	at := d.at
	v := d.object()
	c, ok := v.(*javaClass)
	if v != nil && !ok {
		d.fail(at, "a class is wanted")
	}
	return c
}

func (d *javaDecoder) classDesc() *javaClass {
	c := &javaClass{name: d.text(fieldProperties), suid: d.i64(fieldProperties)}
	d.handles = append(d.handles, c)
	c.flags = d.u8(fieldProperties)
	n := int(uint16(d.u8(fieldProperties))<<8 | uint16(d.u8(fieldProperties)))
	for range n {
		at := d.at
		f := javaField{kind: d.u8(fieldProperties), name: d.text(fieldProperties)}
		switch f.kind {
		case 'B', 'C', 'D', 'F', 'I', 'J', 'S', 'Z':
		case 'L', '[':
			d.object() // the name of its class
		default:
			d.fail(at, "unknown type of a field: %#x", f.kind)
		}
		if d.err != nil {
			return nil
		}
		c.fields = append(c.fields, f)
	}
	d.annotation()
	c.super = d.class()
	for s, depth := c.super, 0; s != nil; s, depth = s.super, depth+1 {
		if s == c || depth > maxJavaDepth {
			d.fail(d.at, "class %s is its own superclass", c.name)
			return nil
		}
	}
	return c
}

// annotation skips what a class has written beside its fields.
func (d *javaDecoder) annotation() {
	for d.err == nil {
		if d.left() > 0 && d.b[d.at] == tcEndBlockData {
			d.at++
			return
		}
		d.object()
	}
}

func (d *javaDecoder) fields(o *javaObject, c *javaClass) {
	if c == nil || d.err != nil {
		return
	}
	d.fields(o, c.super)
	if c.flags&scSerializable == 0 {
		d.fail(d.at, "objects of class %s cannot be read", c.name)
	}
	for _, f := range c.fields {
		if d.err != nil {
			return
		}
		switch f.kind {
		case 'Z':
			at := d.at
			v := d.u8(fieldProperties)
			if v > 1 {
				d.fail(at, "boolean %s is %d", f.name, v)
			}
			o.fields[f.name] = v != 0
		case 'B':
			o.fields[f.name] = int64(int8(d.u8(fieldProperties)))
		case 'C', 'S':
			d.take(fieldProperties, 2)
		case 'I', 'F':
			o.fields[f.name] = int64(d.i32(fieldProperties))
		case 'J', 'D':
			o.fields[f.name] = d.i64(fieldProperties)
		default:
			o.fields[f.name] = d.object()
		}
	}
	if c.flags&scWriteMethod != 0 {
		d.annotation()
	}
}

// javaEncoder writes what javaDecoder reads.
type javaEncoder struct {
	b       []byte
	handles map[string]int // classes, and names of classes of fields
	next    int
}

// utf appends a string that is known to be short.
func (e *javaEncoder) utf(s string) {
	if b, err := appendUTF(e.b, s); err == nil {
		e.b = b
	}
}

// again writes a reference to what was written under key, if it was.
func (e *javaEncoder) again(key string) bool {
	h, ok := e.handles[key]
	if ok {
		e.b = appendI32(append(e.b, tcReference), h)
	}
	return ok
}

// remember gives key the next handle; "" gives one to nobody.
func (e *javaEncoder) remember(key string) {
	if key != "" {
		e.handles[key] = e.next
	}
	e.next++
}

func (e *javaEncoder) string(s, key string) {
	if key != "" && e.again(key) {
		return
	}
	e.b = append(e.b, tcString)
	e.remember(key)
	e.utf(s)
}

// javaFieldOf is a field and, for an object, the class of it.
type javaFieldOf struct{ name, class string }

// class writes a class without annotations; super writes its superclass.
func (e *javaEncoder) class(name string, suid int64, flags byte, fields []javaFieldOf, super func()) {
	if e.again("class " + name) {
		return
	}
	e.b = append(e.b, tcClassDesc)
	e.utf(name)
	e.b = appendI64(e.b, suid)
	e.remember("class " + name)
	e.b = append(e.b, flags, 0, byte(len(fields)))
	for _, f := range fields {
		if f.class == "" {
			e.b = append(e.b, 'Z')
			e.utf(f.name)
			continue
		}
		e.b = append(e.b, 'L')
		e.utf(f.name)
		e.string(f.class, "type "+f.class)
	}
	e.b = append(e.b, tcEndBlockData)
	super()
}

func (e *javaEncoder) null() { e.b = append(e.b, tcNull) }

// enum writes a constant of an enum class.
func (e *javaEncoder) enum(class, constant string) {
	e.b = append(e.b, tcEnum)
	e.class(class, 0, 0x12, nil, func() { e.class("java.lang.Enum", 0, 0x12, nil, e.null) })
	e.remember("")
	e.string(constant, "")
}
