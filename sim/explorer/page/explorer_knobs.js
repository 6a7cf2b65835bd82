'use strict';
// The knobs: form controls made from the catalogue, their state, and its scenario.
// `window.kvsimKnobs`. The address contains the state (#model=…&gpu=…), so that a link reproduces
// the page.
window.kvsimKnobs = (() => {
  const el = (...args) => window.kvsimCards.el(...args);
  const kStart = {model: 'llama-3.1-8b', gpu: 'H100-80GB-SXM', gpu_count: '1', stack: 'hf-sdpa', method: 'zeromerge', budget: '0.2',
                  batch: '1', prompt_tokens: '32768', output_tokens: '512', dtype: '', kv_dtype: '', start: ''};
  const kParam = 'p.';

  /// The state in an address; missing keys have their initial values.
  function readHash(hash) {
    const given = new URLSearchParams(hash.replace(/^#/, ''));
    const state = {...kStart, params: {}};
    if (given.has('method') && !given.has('budget')) state.budget = '';
    for (const [key, value] of given) {
      if (key.startsWith(kParam)) state.params[key.slice(kParam.length)] = value;
      else if (key in kStart) state[key] = value;
    }
    return state;
  }
  function writeHash(state) {
    const out = new URLSearchParams();
    for (const key of Object.keys(kStart)) { if (state[key] !== '') out.set(key, state[key]); }
    for (const [name, value] of Object.entries(state.params)) out.set(kParam + name, value);
    return '#' + out.toString();
  }

  /// Converts `text` to a number if possible; otherwise the core reports the error.
  const numberOf = text => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text);
  function paramValue(param, text) {
    if (param && param.type === 'flag') return text === 'true';
    return param && param.type === 'word' ? text : numberOf(text);
  }

  /// The scenario keys of an engine's start-up log, from its JSON; the core rejects invalid JSON.
  function startOf(text) {
    try {
      const {memory, engine} = JSON.parse(text);
      return {...(memory && {memory}), ...(engine && {engine})};
    } catch {
      return {engine: text};
    }
  }

  /// The scenario of a state; `withFull` adds the full cache to the method.
  function scenarioOf(state, catalogue, withFull) {
    const method = catalogue.methods.find(m => m.name === state.method);
    const out = {model: state.model, gpu: state.gpu, gpu_count: numberOf(state.gpu_count), stack: state.stack};
    if (state.dtype) out.dtype = state.dtype;
    if (state.kv_dtype) out.kv_dtype = state.kv_dtype;
    for (const key of ['batch', 'prompt_tokens', 'output_tokens']) out[key] = numberOf(state[key]);
    if (state.start) Object.assign(out, startOf(state.start));
    let asked = state.method;
    const settings = {};
    if (state.budget !== '' && (!method || method.takes_budget)) settings.budget = numberOf(state.budget);
    for (const [name, value] of Object.entries(state.params)) {
      settings[name] = paramValue(method && method.params.find(p => p.name === name), value);
    }
    if (Object.keys(settings).length > 0) asked = {name: state.method, ...settings};
    out.method = withFull && state.method !== 'full' ? [asked, 'full'] : asked;
    return out;
  }

  /// The form. `changed()` is called after every change of `state`.
  class Knobs {
    constructor(form, catalogue, state, changed) {
      this.form = form;
      this.catalogue = catalogue;
      this.state = state;
      this.changed = changed;
      this.controls = {};
      form.addEventListener('submit', event => event.preventDefault());
      this.build();
    }

    set(key, value) {
      this.state[key] = value;
      this.changed();
    }

    /// A labelled control with its help and a place for its error message.
    field(key, label, control, help) {
      const id = `knob-${key}`;
      control.id = id;
      this.controls[key] = control;
      const text = el('span', {class: 'help', id: `${id}-help`}, help || '');
      const wrong = el('span', {class: 'wrong', id: `${id}-wrong`, hidden: true});
      control.setAttribute('aria-describedby', `${id}-help ${id}-wrong`);
      return el('div', {class: 'knob'}, el('label', {for: id}, label), control, text, wrong);
    }

    choice(key, label, options, help) {
      const select = el('select', {onchange: event => { this.set(key, event.target.value); this.describe(); }},
        options.map(([value, text]) => el('option', {value, selected: value === this.state[key]}, text)));
      if (!options.some(([value]) => value === this.state[key])) {  // a link from another version
        select.append(el('option', {value: this.state[key], selected: true}, this.state[key]));
      }
      return this.field(key, label, select, help);
    }

    number(key, label, {low, high, step, help, placeholder}) {
      const input = el('input', {type: 'number', inputmode: 'decimal', min: low, max: high, step: step || 1, value: this.state[key], placeholder,
                                 oninput: event => { this.set(key, event.target.value); this.slide(key); }});
      return this.field(key, label, input, help);
    }

    /// A number with a slider over its powers of two.
    slider(key, label, {low, high, help}) {
      const box = this.number(key, label, {low, high, help});
      const range = el('input', {type: 'range', class: 'slide', min: Math.log2(low), max: Math.log2(high), step: 0.125, 'aria-label': `${label}, in powers of two`,
        oninput: event => {
          const power = Number(event.target.value);
          const value = String(Number.isInteger(power) ? 2 ** power : Math.round(2 ** power));
          this.controls[key].value = value;
          event.target.setAttribute('aria-valuetext', Number(value).toLocaleString('en-US'));
          this.set(key, value);
        }});
      this.controls[`${key}.slide`] = range;
      box.insertBefore(range, box.children[2]);
      this.slide(key);
      return box;
    }
    slide(key) {
      const range = this.controls[`${key}.slide`], value = Number(this.state[key]);
      if (!range || !(value >= 1)) return;
      range.value = String(Math.log2(value));
      range.setAttribute('aria-valuetext', value.toLocaleString('en-US'));
    }

    build() {
      const {models, gpus, stacks, methods, dtypes, kv_dtypes, bounds} = this.catalogue;
      const names = list => list.map(one => [one.name, one.name]);
      const kSlideTokens = 2 ** 21, kSlideBatch = 1024;
      const group = (legend, ...parts) => el('fieldset', {}, el('legend', {}, legend), el('div', {class: 'knobs'}, ...parts));
      this.params = el('div', {});
      this.form.replaceChildren(
        group('What runs where', this.choice('model', 'Model', names(models)), this.choice('gpu', 'GPU', names(gpus)),
              this.number('gpu_count', 'GPUs', {low: 1, high: bounds.gpus, help: 'share the model (tensor parallel)'}),
              this.choice('stack', 'Software stack', names(stacks)),
              this.choice('dtype', 'Weights', [['', 'as published'], ...dtypes.map(d => [d, d])]),
              this.choice('kv_dtype', 'Cache', [['', 'format of the computation'], ...kv_dtypes.map(d => [d, d])])),
        group('How much', this.slider('prompt_tokens', 'Context: prompt tokens', {low: 1, high: kSlideTokens}),
              this.number('output_tokens', 'Output tokens', {low: 0, high: bounds.tokens, help: 'decoded after the prompt'}),
              this.slider('batch', 'Batch: sequences together', {low: 1, high: kSlideBatch})),
        group('Cache compression', this.choice('method', 'Method', names(methods)),
              this.number('budget', 'Budget', {low: 0, step: 'any'}), this.params));
      for (const key of ['prompt_tokens', 'batch']) this.controls[key].max = key === 'batch' ? bounds.batch : bounds.tokens;
      this.controls.method.addEventListener('change', () => {
        this.state.params = {};
        const method = this.method();
        this.state.budget = method && method.takes_budget ? this.state.budget : '';
        this.describe();
        this.changed();
      });
      this.describe();
    }
    method() { return this.catalogue.methods.find(m => m.name === this.state.method); }

    /// Updates help texts and the method's parameters, which depend on the chosen values.
    describe() {
      const say = (key, text) => { document.getElementById(`knob-${key}-help`).textContent = text || ''; };
      const of = list => list.find(one => one.name === this.state[{models: 'model', gpus: 'gpu', stacks: 'stack'}[list.kind]]);
      for (const kind of ['models', 'gpus', 'stacks']) {
        const list = this.catalogue[kind];
        list.kind = kind;
        const key = {models: 'model', gpus: 'gpu', stacks: 'stack'}[kind];
        const one = of(list);
        say(key, one && one.text);
      }
      const method = this.method();
      say('method', method && `${method.summary}; holds ${method.size_law} entries per head`);
      const budget = this.controls.budget, takes = Boolean(method && method.takes_budget);
      budget.disabled = !takes;
      budget.value = takes ? this.state.budget : '';
      budget.placeholder = takes && method.default_budget ? String(method.default_budget) : '';
      say('budget', takes ? 'up to 1: a share of the prompt’s cache; above 1: entries per head' : 'this method has no budget');
      this.buildParams(method);
    }

    buildParams(method) {
      if (!method || method.params.length === 0) { this.params.replaceChildren(); return; }
      const change = (param, value) => {
        if (value === '' || value === String(param.default)) delete this.state.params[param.name];
        else this.state.params[param.name] = value;
        this.changed();
      };
      const control = param => {
        const now = param.name in this.state.params ? this.state.params[param.name] : String(param.default);
        const pick = (words) => el('select', {onchange: event => change(param, event.target.value)},
          words.map(word => el('option', {value: word, selected: word === now}, word === '' ? 'none' : word)));
        if (param.type === 'flag') return pick(['true', 'false']);
        if (param.type === 'word') return param.words.length > 0 ? pick(param.words) : el('input', {type: 'text', value: now, oninput: event => change(param, event.target.value)});
        return el('input', {type: 'number', step: param.type === 'integer' ? 1 : 'any', inputmode: 'decimal', value: now, oninput: event => change(param, event.target.value)});
      };
      const open = Object.keys(this.state.params).length > 0 || (this.params.firstChild && this.params.firstChild.open);
      this.params.replaceChildren(el('details', {open}, el('summary', {}, `Parameters of ${method.name} (${method.params.length})`),
        el('div', {class: 'knobs'}, method.params.map(param => this.field(`param-${param.name}`, param.name, control(param), `${param.help}; ${param.range}`)))));
    }

    /// Shows an error of the core next to its control; true if there is one.
    complain(message) {
      for (const node of this.form.querySelectorAll('.wrong')) node.hidden = true;
      for (const control of Object.values(this.controls)) control.removeAttribute('aria-invalid');
      if (!message) return false;
      const pointer = (message.match(/: (\/[^:]*):/) || [])[1] || '';
      const tokens = pointer.split('/').filter(token => token !== '' && !/^\d+$/.test(token));
      const key = [...tokens].reverse().map(token => (token in this.controls ? token : `param-${token}`)).find(token => token in this.controls);
      if (!key) return false;
      const wrong = document.getElementById(`knob-${key}-wrong`);
      wrong.textContent = message.slice(message.indexOf(pointer) + pointer.length).replace(/^: /, '');
      wrong.hidden = false;
      this.controls[key].setAttribute('aria-invalid', 'true');
      return true;
    }
  }

  return {readHash, writeHash, scenarioOf, Knobs, kStart};
})();
