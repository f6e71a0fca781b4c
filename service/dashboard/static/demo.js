// The demo's simulated market: a shop with two hidden regimes that alternate. The regime determines who shows up and what
// works; the service never sees it. The same seed gives the same customers.

export const DEMO = {
  actions: ["no offer", "free shipping", "discount"],
  variables: [
    { name: "source", levels: ["search", "newsletter", "social"] },
    { name: "device", levels: ["phone", "desktop"] },
    { name: "basket", cuts: [40, 90], levels: ["small", "medium", "large"] },
  ],
  signals: ["source", "device"],
  rewards: { range: [-20, 40] },
  control: { share: 0.1 },
  seed: 7, // of the decisions, so that everyone sees the same demo
};

export const CUSTOMERS = 1_500;
const MEAN_DURATION = 170; // customers per regime
const NOISE_STD = 2.5; // of a customer's reward, in euros

export const REGIMES = [
  {
    label: "everyday",
    source: [0.5, 0.4, 0.1],
    phone: 0.3,
    earns: { "no offer": 4, "free shipping": 6.5, discount: 2.5 },
  },
  {
    label: "bargain hunt",
    source: [0.2, 0.1, 0.7],
    phone: 0.8,
    earns: { "no offer": 1, "free shipping": 1.5, discount: 5.5 },
  },
];

// A generator of uniform numbers in [0, 1): mulberry32.
function makeRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const drawNormal = (draw) => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());

function pickLevel(levels, shares, draw) {
  let left = draw();
  return levels.find((_, i) => (left -= shares[i]) < 0) ?? levels.at(-1);
}

// Yields {context, regime, earned(action)} for each customer.
export function* simulateMarket(count = CUSTOMERS, seed = 7) {
  const draw = makeRandom(seed), [source, device] = DEMO.variables;
  let regime = 0;
  for (let number = 0; number < count; number += 1) {
    if (draw() < 1 / MEAN_DURATION) regime = 1 - regime;
    const { source: shares, phone, earns } = REGIMES[regime];
    const context = {
      source: pickLevel(source.levels, shares, draw),
      device: pickLevel(device.levels, [phone, 1 - phone], draw),
      basket: Math.round(10 + 110 * draw()),
    };
    const luck = NOISE_STD * drawNormal(draw), worth = (context.basket - 65) / 30;
    const earned = (action) => {
      const shipping = action === "free shipping" && context.basket > 90 ? 1 : 0;
      return Math.round(100 * Math.max(-20, Math.min(40, earns[action] + worth + shipping + luck))) / 100;
    };
    yield { context, regime, earned };
  }
}
